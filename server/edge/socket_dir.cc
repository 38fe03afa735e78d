#include "server/edge/socket_dir.h"

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
#include "absl/time/clock.h"
#include "kernels/base/same_file.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"
#include "server/edge/listening_path.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

std::string WithoutSlashAtEnd(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

absl::Status DirectoryError(const std::string& path, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("socket directory ", path, ": ", why));
}

// Rejects a link in the directory's place, whose creator would choose which directory gets this mode and these sockets.
absl::StatusOr<wire::FileDescriptor> OpenOwnDirectory(const std::string& path, mode_t mode) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  wire::FileDescriptor directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory.valid() && (errno == ELOOP || errno == ENOTDIR)) {
    return absl::FailedPreconditionError(
        absl::StrCat("socket directory ", path, ": want a directory, got a link or a file"));
  }
  struct stat info {};
  if (!directory.valid() || fstat(directory.get(), &info) != 0) {
    return DirectoryError(path, error ? error.message() : strerror(errno));
  }
  if (info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat("socket directory ", path, ": want a directory of user ",
                                                      geteuid(), ", got one of user ", info.st_uid));
  }
  if (fchmod(directory.get(), mode) != 0) return DirectoryError(path, strerror(errno));
  return directory;
}

// Writes this process's number into the lock file, for error messages of other daemons only.
void WriteHolder(int lock) {
  const std::string holder = absl::StrCat(getpid(), "\n");
  if (ftruncate(lock, 0) == 0) (void)!pwrite(lock, holder.data(), holder.size(), 0);
}

// Returns " (process 1234)", or "" if the file has no number.
std::string HolderOf(int lock) {
  char text[16];
  const ssize_t size = pread(lock, text, sizeof(text), 0);
  int process = 0;
  if (size <= 0 || !absl::SimpleAtoi(absl::string_view(text, size), &process)) return "";
  return absl::StrCat(" (process ", process, ")");
}

// Opens the directory's lock file without locking it.
absl::StatusOr<wire::FileDescriptor> OpenLock(const std::string& path, bool shared) {
  // The kernel follows a link if its name ends in a slash.
  ASSIGN_OR_RETURN(const wire::FileDescriptor directory,
                   OpenOwnDirectory(WithoutSlashAtEnd(path), shared ? 0755 : 0700));
  wire::FileDescriptor lock(openat(directory.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock.valid()) return DirectoryError(path, absl::StrCat("open lock: ", strerror(errno)));
  return lock;
}

absl::Status Hold(const std::string& path, int lock) {
  if (flock(lock, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  // Network file systems may not support locks.
  if (errno != EWOULDBLOCK) return DirectoryError(path, absl::StrCat("lock: ", strerror(errno)));
  return absl::AlreadyExistsError(absl::StrCat("socket directory ", path, ": another daemon", HolderOf(lock),
                                               " holds it; stop that one or choose another directory"));
}

absl::Status AwaitHold(const std::string& path, int lock, absl::Duration wait) {
  constexpr absl::Duration kPollInterval = absl::Milliseconds(20);
  const SteadyTime deadline = SteadyDeadline(wait);
  absl::Status held = Hold(path, lock);
  if (absl::IsAlreadyExists(held) && wait > absl::ZeroDuration()) {
    Log(LogLevel::kWarning, "waiting for the socket directory",
        {{"why", std::string(held.message())}, {"timeout", absl::FormatDuration(wait)}});
  }
  while (absl::IsAlreadyExists(held) && SteadyNow() < deadline) {
    absl::SleepFor(kPollInterval);  // a lock of a file has no wait with a timeout
    held = Hold(path, lock);
  }
  return held;
}

}  // namespace

wire::FileDescriptor TakeLentDescriptor(const char* variable) {
  const char* const value = std::getenv(variable);
  int fd = -1;
  // fcntl fails for a number that is no open descriptor.
  const bool lent = value != nullptr && absl::SimpleAtoi(value, &fd) && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
  unsetenv(variable);
  return wire::FileDescriptor(lent ? fd : -1);
}

absl::StatusOr<SocketDir> SocketDir::Acquire(const std::string& path, bool shared, int lent, absl::Duration wait) {
  ASSIGN_OR_RETURN(wire::FileDescriptor lock, OpenLock(path, shared));
  if (lent >= 0 && AreSameFile(lent, lock.get())) {
    // A duplicate of `lent` shares the keeper's lock; `lock` does not.
    wire::FileDescriptor held(fcntl(lent, F_DUPFD_CLOEXEC, 0));
    if (!held.valid()) return DirectoryError(path, absl::StrCat("the keeper's lock: ", strerror(errno)));
    return SocketDir(path, shared, std::move(held));
  }
  RETURN_IF_ERROR(AwaitHold(path, lock.get(), wait));
  SocketDir held(path, shared, std::move(lock));
  // The lock alone proves nothing: it may have been deleted under a daemon that serves.
  for (const std::string& socket : {held.grpc_path(), held.companion_path()}) {
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
  Log(LogLevel::kWarning, "lock of the socket directory was removed and recreated", {{"path", name}});
  return absl::OkStatus();
}

}  // namespace paramshard::server
