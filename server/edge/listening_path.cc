#include "server/edge/listening_path.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/same_file.h"
#include "kernels/base/status_macros.h"
#include "server/edge/peer_process.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

constexpr int kPathBacklog = 512;

absl::Status PathError(absl::string_view path, int error) {
  return absl::UnavailableError(absl::StrCat("listen on ", path, ": ", strerror(error)));
}

absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("listen on ", path,
                                                   ": the path is too long for a socket: want at most ",
                                                   sizeof(address.sun_path) - 1, " bytes, got ", path.size()));
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}

// Returns 0, or the errno of connect.
int Connect(const sockaddr_un& address, int type, pid_t* process) {
  const wire::FileDescriptor probe(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return errno;
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return errno;
  const absl::StatusOr<PeerCredentials> peer = CredentialsOf(probe.get());
  *process = peer.ok() ? peer->pid : 0;
  return 0;
}

}  // namespace

absl::Status CheckNobodyListens(const std::string& path) {
  ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  pid_t process = 0;
  int error = Connect(address, SOCK_STREAM, &process);
  if (error == EPROTOTYPE) error = Connect(address, SOCK_SEQPACKET, &process);
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
      return absl::OkStatus();
    case 0:
    case EAGAIN:  // its queue of connections is full
      return absl::AlreadyExistsError(absl::StrCat("socket ", path, ": another daemon",
                                                   process == 0 ? "" : absl::StrCat(" (process ", process, ")"),
                                                   " listens there; stop that one or choose another directory"));
    default:
      return absl::FailedPreconditionError(
          absl::StrCat("socket ", path, ": failed to find out whether a daemon listens: ", strerror(error)));
  }
}

absl::StatusOr<std::unique_ptr<ListeningPath>> ListeningPath::Create(Options options) {
  std::unique_ptr<ListeningPath> listening(new ListeningPath(std::move(options)));
  RETURN_IF_ERROR(listening->Listen());
  return listening;
}

ListeningPath::~ListeningPath() {
  if (fd_.valid() && IsThere()) unlink(options_.path.c_str());
}

absl::Status ListeningPath::Listen() {
  ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(options_.path));
  RETURN_IF_ERROR(RemoveUnserved());
  wire::FileDescriptor fd(socket(AF_UNIX, options_.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return PathError(options_.path, errno);
  }
  struct stat file {};
  // Sets the mode before it listens, so that no other user connects meanwhile.
  if (chmod(options_.path.c_str(), options_.mode) != 0 || lstat(options_.path.c_str(), &file) != 0 ||
      listen(fd.get(), kPathBacklog) != 0) {
    return PathError(options_.path, errno);
  }
  fd_ = std::move(fd);
  file_ = file;
  return absl::OkStatus();
}

absl::Status ListeningPath::RemoveUnserved() const {
  struct stat before {};
  if (lstat(options_.path.c_str(), &before) != 0) return absl::OkStatus();
  if (!S_ISSOCK(before.st_mode) || before.st_uid != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat("listen on ", options_.path,
                                                      ": want nothing or an old socket of user ", geteuid(),
                                                      " there, got another file; remove it"));
  }
  RETURN_IF_ERROR(CheckNobodyListens(options_.path));
  struct stat now {};
  if (lstat(options_.path.c_str(), &now) == 0 && AreSameFile(before, now)) unlink(options_.path.c_str());
  return absl::OkStatus();
}

bool ListeningPath::IsThere() const {
  struct stat now {};
  return lstat(options_.path.c_str(), &now) == 0 && AreSameFile(now, file_);
}

absl::StatusOr<wire::FileDescriptor> ListeningPath::TryRestore() {
  if (options_.restore_directory != nullptr) RETURN_IF_ERROR(options_.restore_directory());
  if (IsThere()) return wire::FileDescriptor();
  wire::FileDescriptor before = std::move(fd_);
  if (const absl::Status status = Listen(); !status.ok()) {
    fd_ = std::move(before);
    return status;
  }
  Log(LogLevel::kWarning, "socket was removed and recreated", {{"path", options_.path}});
  return before;
}

wire::FileDescriptor ListeningPath::Restore() {
  absl::StatusOr<wire::FileDescriptor> before = TryRestore();
  const std::string error(before.status().message());
  if (error != last_error_ && !before.ok()) {
    Log(LogLevel::kError,
        IsThere() ? "failed to restore the socket directory" : "failed to restore the socket; clients cannot connect",
        {{"path", options_.path}, {"error", error}});
  }
  last_error_ = error;
  return before.ok() ? *std::move(before) : wire::FileDescriptor();
}

}  // namespace paramshard::server
