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

absl::Status MakeOwnDirectory(const std::string& path, mode_t mode) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::UnavailableError(
        absl::StrCat("socket directory ", path, ": ", error ? error.message() : strerror(errno)));
  }
  if (info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat("socket directory ", path, ": a directory of user ", geteuid(),
                                                      " expected, got one of user ", info.st_uid));
  }
  if (chmod(path.c_str(), mode) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("socket directory ", path, ": ", strerror(errno)));
}

}  // namespace

absl::StatusOr<SocketDir> SocketDir::Acquire(const std::string& path, bool shared) {
  RETURN_IF_ERROR(MakeOwnDirectory(path, shared ? 0755 : 0700));
  const std::string lock_path = path + "/lock";
  wire::FileDescriptor lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return absl::UnavailableError(absl::StrCat("open ", lock_path, ": ", strerror(errno)));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return SocketDir(path, std::move(lock));
  return absl::AlreadyExistsError(
      absl::StrCat("socket directory ", path, ": another daemon serves it; stop that one or choose --socket-dir"));
}

}  // namespace paramshard::server
