// The directory of a daemon's sockets, held by one daemon at a time: by its keeper, or by a server without one.
#ifndef PARAMSHARD_SERVER_HANDOFF_SOCKET_DIR_H_
#define PARAMSHARD_SERVER_HANDOFF_SOCKET_DIR_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/wire/handoff.h"

namespace paramshard::server {

// Takes over a descriptor that the keeper has lent to this process, and removes the variable that names it, so that no
// child has it: called once, before there are threads. None where there is no such keeper.
wire::FileDescriptor TakeLentDescriptor(const char* variable);

// Owns the directory's lock, which is free again when all processes that have its descriptor have ended: a keeper and
// the server that it has lent it to, however they end. Move-only.
class SocketDir {
 public:
  // In the environment of a keeper's servers: the number of their descriptor of the lock.
  static constexpr char kLockVariable[] = "PARAMSHARD_SOCKET_DIR_LOCK";

  // Creates the directory where it is missing and takes its lock. `shared`: other users may enter. `lent`: the lock
  // that the keeper of this process holds; where it is that of this directory there is nothing more to take.
  // ALREADY_EXISTS naming the process when another daemon holds it, or listens at one of its sockets; FAILED_PRECONDITION
  // when it belongs to another user, or is a link; INVALID_ARGUMENT when its sockets' paths are too long.
  static absl::StatusOr<SocketDir> Acquire(const std::string& path, bool shared, int lent = -1);

  static wire::FileDescriptor TakeLentLock() { return TakeLentDescriptor(kLockVariable); }

  // Makes the directory and its lock anew where they are gone, as cleaners of /tmp remove them. Errors of Acquire, with
  // which another daemon may have the directory by now. Thread-safe.
  absl::Status Restore();

  int lock() const { return lock_.get(); }
  std::string grpc_path() const { return path_ + "/grpc.sock"; }
  std::string handoff_path() const { return path_ + "/handoff.sock"; }

 private:
  SocketDir(std::string path, bool shared, wire::FileDescriptor lock)
      : path_(std::move(path)), shared_(shared), lock_(std::move(lock)), restoring_(std::make_unique<absl::Mutex>()) {}

  std::string path_;
  bool shared_;
  wire::FileDescriptor lock_;  // of the time when it was acquired
  std::unique_ptr<absl::Mutex> restoring_;
  wire::FileDescriptor restored_;  // the lock since then, where there is another one; guarded by restoring_
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_HANDOFF_SOCKET_DIR_H_
