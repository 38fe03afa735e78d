#include "server/socket_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

std::string WithoutSlashAtEnd(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

absl::Status DirectoryError(const std::string& path, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("socket directory ", path, ": ", why));
}

// Refuses a link in the directory's place: whoever can put one there would choose what gets this mode and these
// sockets.
absl::StatusOr<wire::FileDescriptor> OpenOwnDirectory(const std::string& path, mode_t mode) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  wire::FileDescriptor directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory.valid() && (errno == ELOOP || errno == ENOTDIR)) {
    return absl::FailedPreconditionError(
        absl::StrCat("socket directory ", path, ": a directory expected, got a link or a file"));
  }
  struct stat info {};
  if (!directory.valid() || fstat(directory.get(), &info) != 0) {
    return DirectoryError(path, error ? error.message() : strerror(errno));
  }
  if (info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat("socket directory ", path, ": a directory of user ", geteuid(),
                                                      " expected, got one of user ", info.st_uid));
  }
  if (fchmod(directory.get(), mode) != 0) return DirectoryError(path, strerror(errno));
  return directory;
}

}  // namespace

absl::StatusOr<SocketDir> SocketDir::Acquire(const std::string& path, bool shared) {
  // A link is followed where its name ends in a slash.
  ASSIGN_OR_RETURN(const wire::FileDescriptor directory,
                   OpenOwnDirectory(WithoutSlashAtEnd(path), shared ? 0755 : 0700));
  wire::FileDescriptor lock(openat(directory.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock.valid()) return DirectoryError(path, absl::StrCat("open lock: ", strerror(errno)));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return SocketDir(path, std::move(lock));
  return absl::AlreadyExistsError(
      absl::StrCat("socket directory ", path, ": another daemon serves it; stop that one or choose --socket-dir"));
}

}  // namespace paramshard::server
