// The directory of a daemon's sockets, held by one daemon at a time.
#ifndef PARAMSHARD_SERVER_SOCKET_DIR_H_
#define PARAMSHARD_SERVER_SOCKET_DIR_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/wire/handoff.h"

namespace paramshard::server {

// Owns the directory's lock; a killed daemon's lock is free again. Move-only.
class SocketDir {
 public:
  // Creates the directory where it is missing and takes its lock. `shared`: other users may enter. ALREADY_EXISTS when
  // another daemon holds it; FAILED_PRECONDITION when it belongs to another user, or is a link.
  static absl::StatusOr<SocketDir> Acquire(const std::string& path, bool shared);

  std::string grpc_path() const { return path_ + "/grpc.sock"; }
  std::string handoff_path() const { return path_ + "/handoff.sock"; }

 private:
  SocketDir(std::string path, wire::FileDescriptor lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  wire::FileDescriptor lock_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SOCKET_DIR_H_
