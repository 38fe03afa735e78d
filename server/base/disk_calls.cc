#include "server/base/disk_calls.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "absl/strings/string_view.h"

namespace paramshard::server {

int DiskCalls::Open(const std::string& path, int flags, mode_t mode) { return open(path.c_str(), flags, mode); }
int DiskCalls::Close(int fd) { return close(fd); }

ssize_t DiskCalls::Pwrite(int fd, const void* data, size_t size_bytes, int64_t offset_bytes) {
  return pwrite(fd, data, size_bytes, offset_bytes);
}

// Avoids posix_fallocate, which writes zeros if the file system cannot reserve.
int DiskCalls::Fallocate(int fd, int64_t size_bytes) { return fallocate(fd, 0, 0, size_bytes); }
int DiskCalls::Fsync(int fd) { return fsync(fd); }
int DiskCalls::Fdatasync(int fd) { return fdatasync(fd); }
int DiskCalls::SetDirect(int fd, bool direct) {
  const int flags = fcntl(fd, F_GETFL);
  return flags < 0 ? -1 : fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT);
}
int DiskCalls::Flock(int fd, int operation) { return flock(fd, operation); }

int DiskCalls::Mkdir(const std::string& path, mode_t mode) { return mkdir(path.c_str(), mode); }
int DiskCalls::Rename(const std::string& from, const std::string& to) { return rename(from.c_str(), to.c_str()); }
int DiskCalls::Unlink(const std::string& path) { return unlink(path.c_str()); }
int DiskCalls::Rmdir(const std::string& path) { return rmdir(path.c_str()); }

int DiskCalls::Stat(const std::string& path, struct stat* status) { return stat(path.c_str(), status); }
int DiskCalls::Lstat(const std::string& path, struct stat* status) { return lstat(path.c_str(), status); }
int DiskCalls::Access(const std::string& path, int mode) { return access(path.c_str(), mode); }

int DiskCalls::List(const std::string& path, std::vector<std::string>* names) {
  // Does not follow a link in the folder's place: the entries listed here are often removed next.
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -1;
  DIR* const folder = fdopendir(fd);
  if (folder == nullptr) {
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  errno = 0;
  while (const dirent* const entry = readdir(folder)) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names->emplace_back(name);
    errno = 0;
  }
  const int error = errno;
  closedir(folder);
  errno = error;
  return error == 0 ? 0 : -1;
}

int64_t DiskCalls::FreeBytes(const std::string& path) {
  struct statvfs status;
  if (statvfs(path.c_str(), &status) != 0) return -1;
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  const uint64_t block_bytes = std::max<uint64_t>(status.f_frsize, 1);
  return static_cast<int64_t>(std::min<uint64_t>(status.f_bavail, kMax / block_bytes) * block_bytes);
}

}  // namespace paramshard::server
