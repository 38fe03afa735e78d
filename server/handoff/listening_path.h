// A Unix socket that listens at a path.
#ifndef PARAMSHARD_SERVER_HANDOFF_LISTENING_PATH_H_
#define PARAMSHARD_SERVER_HANDOFF_LISTENING_PATH_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/wire/handoff.h"

namespace paramshard::server {

// How often an owner looks whether its sockets are still there.
inline constexpr absl::Duration kSocketCheckInterval = absl::Seconds(2);

// Removes no file but a socket of this user that nobody serves, and its own. Thread-compatible.
class ListeningPath {
 public:
  struct Options {
    std::string path;
    int type = 0;  // SOCK_STREAM or SOCK_SEQPACKET
    mode_t mode = 0600;
    // Makes the directory anew where it is gone; called before each look. Null: nothing does.
    std::function<absl::Status()> restore_directory = nullptr;
  };

  // ALREADY_EXISTS naming the process when somebody listens at `path`; FAILED_PRECONDITION when something else than a
  // socket of this user is there; INVALID_ARGUMENT for a path that is too long for a socket; UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<ListeningPath>> Create(Options options);
  // Removes the socket, unless another file has its place.
  ~ListeningPath();
  ListeningPath(const ListeningPath&) = delete;
  ListeningPath& operator=(const ListeningPath&) = delete;

  int fd() const { return fd_.get(); }

  // Listens anew where the socket's file is gone: cleaners of /tmp remove it, and then nobody can connect. Returns the
  // socket that has listened until now, and whose events are no longer of interest; an invalid one where nothing has
  // changed. Logs what it does, or why it cannot.
  wire::FileDescriptor Restore();

 private:
  explicit ListeningPath(Options options) : options_(std::move(options)) {}
  absl::Status Listen();
  // Makes room for the socket.
  absl::Status RemoveUnserved() const;
  bool IsThere() const;
  absl::StatusOr<wire::FileDescriptor> TryRestore();

  const Options options_;
  wire::FileDescriptor fd_;
  struct stat file_ {};     // of the socket that this one has bound
  std::string last_error_;  // of Restore
};

// OK where nobody listens at `path`; ALREADY_EXISTS naming the process where somebody does; FAILED_PRECONDITION where
// that cannot be told.
absl::Status CheckNobodyListens(const std::string& path);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_HANDOFF_LISTENING_PATH_H_
