// Unix socket that listens at a path.
#ifndef PARAMSHARD_SERVER_EDGE_LISTENING_PATH_H_
#define PARAMSHARD_SERVER_EDGE_LISTENING_PATH_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/shared_memory/file_descriptor.h"

namespace paramshard::server {

// Interval of checks that the sockets still exist.
inline constexpr absl::Duration kSocketCheckInterval = absl::Seconds(2);

// Removes only its own socket, and one of this user that no process serves. Thread-compatible.
class ListeningPath {
 public:
  struct Options {
    std::string path;
    int type = 0;  // SOCK_STREAM or SOCK_SEQPACKET
    mode_t mode = 0600;
    // Recreates the directory if it is gone; called before each check. Null: the directory is not recreated.
    std::function<absl::Status()> restore_directory = nullptr;
  };

  // ALREADY_EXISTS, naming the process, if a process listens at `path`; FAILED_PRECONDITION if another file than a
  // socket of this user is there; INVALID_ARGUMENT a path that is too long for a socket; UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<ListeningPath>> Create(Options options);
  // Removes the socket, unless another file has taken its place.
  ~ListeningPath();
  ListeningPath(const ListeningPath&) = delete;
  ListeningPath& operator=(const ListeningPath&) = delete;

  int fd() const { return fd_.get(); }

  // Listens again if the socket's file is gone: cleaners of /tmp remove it, and then no client can connect. Returns the
  // previous socket, whose events no longer matter; an invalid one if nothing has changed. Logs changes and errors.
  wire::FileDescriptor Restore();

 private:
  explicit ListeningPath(Options options) : options_(std::move(options)) {}
  absl::Status Listen();
  // Removes a socket that no process serves.
  absl::Status RemoveUnserved() const;
  bool IsThere() const;
  absl::StatusOr<wire::FileDescriptor> TryRestore();

  const Options options_;
  wire::FileDescriptor fd_;
  struct stat file_ {};     // of the bound socket
  std::string last_error_;  // of Restore
};

// Returns OK if no process listens at `path`; ALREADY_EXISTS, naming the process, if one does; FAILED_PRECONDITION if
// the check fails.
absl::Status CheckNobodyListens(const std::string& path);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_LISTENING_PATH_H_
