// Directory of a daemon's sockets, held by one daemon at a time: by its keeper, or by a server without a keeper.
#ifndef PARAMSHARD_SERVER_EDGE_SOCKET_DIR_H_
#define PARAMSHARD_SERVER_EDGE_SOCKET_DIR_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/shared_memory/file_descriptor.h"

namespace paramshard::server {

// Takes over a descriptor inherited from the keeper, and removes the variable that names it, so that no child uses it.
// Call it once, before there are threads. Returns an invalid descriptor without such a keeper.
wire::FileDescriptor TakeLentDescriptor(const char* variable);

// Owns the directory's lock, which is released when all processes with its descriptor have ended: a keeper and its
// server, however they end. Move-only.
class SocketDir {
 public:
  // Environment variable with the number of the server's descriptor of the lock.
  static constexpr char kLockVariable[] = "PARAMSHARD_SOCKET_DIR_LOCK";

  // Creates the directory if it does not exist, and locks it. `shared`: other users may enter. `lent`: the lock that
  // the keeper of this process holds; if it belongs to this directory, it is duplicated. ALREADY_EXISTS, naming the
  // process, if another daemon holds the directory or listens at one of its sockets; FAILED_PRECONDITION if it belongs
  // to another user, or is a link; INVALID_ARGUMENT if its sockets' paths are too long. `wait`: how long the lock may
  // still be held, as by a killed process whose memory is being freed.
  static absl::StatusOr<SocketDir> Acquire(const std::string& path, bool shared, int lent = -1,
                                           absl::Duration wait = absl::ZeroDuration());
  // The wait of a daemon that starts.
  static constexpr absl::Duration kStartWait = absl::Seconds(5);

  static wire::FileDescriptor TakeLentLock() { return TakeLentDescriptor(kLockVariable); }

  // Recreates the directory and its lock if they are gone: cleaners of /tmp remove them. Errors of Acquire: another
  // daemon may hold the directory by now. Thread-safe.
  absl::Status Restore();

  int lock() const { return lock_.get(); }
  std::string grpc_path() const { return path_ + "/grpc.sock"; }
  std::string companion_path() const { return path_ + "/handoff.sock"; }

 private:
  SocketDir(std::string path, bool shared, wire::FileDescriptor lock)
      : path_(std::move(path)), shared_(shared), lock_(std::move(lock)), restoring_(std::make_unique<absl::Mutex>()) {}

  std::string path_;
  bool shared_;
  wire::FileDescriptor lock_;  // taken by Acquire
  std::unique_ptr<absl::Mutex> restoring_;
  wire::FileDescriptor restored_;  // the lock taken by the last Restore, if any; guarded by restoring_
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_SOCKET_DIR_H_
