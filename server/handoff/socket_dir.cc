#include "server/handoff/socket_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/same_file.h"
#include "kernels/base/status_macros.h"
#include "server/handoff/listening_path.h"
#include "server/log/log.h"

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

// Who holds the lock writes its process into the file, for who is refused. Nothing depends on it.
void WriteHolder(int lock) {
  const std::string holder = absl::StrCat(getpid(), "\n");
  if (ftruncate(lock, 0) == 0) (void)!pwrite(lock, holder.data(), holder.size(), 0);
}

// " (process 1234)", or nothing where the file does not say so.
std::string HolderOf(int lock) {
  char text[16];
  const ssize_t size = pread(lock, text, sizeof(text), 0);
  int process = 0;
  if (size <= 0 || !absl::SimpleAtoi(absl::string_view(text, size), &process)) return "";
  return absl::StrCat(" (process ", process, ")");
}

// The directory's lock, which nobody holds by this.
absl::StatusOr<wire::FileDescriptor> OpenLock(const std::string& path, bool shared) {
  // A link is followed where its name ends in a slash.
  ASSIGN_OR_RETURN(const wire::FileDescriptor directory,
                   OpenOwnDirectory(WithoutSlashAtEnd(path), shared ? 0755 : 0700));
  wire::FileDescriptor lock(openat(directory.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock.valid()) return DirectoryError(path, absl::StrCat("open lock: ", strerror(errno)));
  return lock;
}

absl::Status Hold(const std::string& path, int lock) {
  if (flock(lock, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  // File systems of a network may know no locks.
  if (errno != EWOULDBLOCK) return DirectoryError(path, absl::StrCat("lock: ", strerror(errno)));
  return absl::AlreadyExistsError(absl::StrCat("socket directory ", path, ": another daemon", HolderOf(lock),
                                               " holds it; stop that one or choose another directory"));
}

}  // namespace

wire::FileDescriptor TakeLentDescriptor(const char* variable) {
  const char* const value = std::getenv(variable);
  int fd = -1;
  // What is no descriptor cannot be marked, and is taken for none.
  const bool lent = value != nullptr && absl::SimpleAtoi(value, &fd) && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
  unsetenv(variable);
  return wire::FileDescriptor(lent ? fd : -1);
}

absl::StatusOr<SocketDir> SocketDir::Acquire(const std::string& path, bool shared, int lent) {
  ASSIGN_OR_RETURN(wire::FileDescriptor lock, OpenLock(path, shared));
  if (lent >= 0 && AreSameFile(lent, lock.get())) {
    // Not `lock`, of which the kernel does not know that it is the keeper's.
    wire::FileDescriptor held(fcntl(lent, F_DUPFD_CLOEXEC, 0));
    if (!held.valid()) return DirectoryError(path, absl::StrCat("the keeper's lock: ", strerror(errno)));
    return SocketDir(path, shared, std::move(held));
  }
  RETURN_IF_ERROR(Hold(path, lock.get()));
  SocketDir held(path, shared, std::move(lock));
  // The lock is no proof: it may have been deleted under a daemon that serves.
  for (const std::string& socket : {held.grpc_path(), held.handoff_path()}) {
    RETURN_IF_ERROR(CheckNobodyListens(socket));
  }
  WriteHolder(held.lock());
  return held;
}

absl::Status SocketDir::Restore() {
  absl::MutexLock restoring(restoring_.get());
  struct stat there {};
  struct stat ours {};
  const std::string name = path_ + "/lock";
  if (lstat(name.c_str(), &there) == 0 && fstat(restored_.valid() ? restored_.get() : lock_.get(), &ours) == 0 &&
      AreSameFile(there, ours)) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(wire::FileDescriptor lock, OpenLock(path_, shared_));
  RETURN_IF_ERROR(Hold(path_, lock.get()));
  WriteHolder(lock.get());
  restored_ = std::move(lock);
  Log(LogLevel::kWarning, "lock of the socket directory was removed and made anew", {{"path", name}});
  return absl::OkStatus();
}

}  // namespace paramshard::server
