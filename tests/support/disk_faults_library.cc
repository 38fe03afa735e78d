// A library that a daemon is started with (LD_PRELOAD): one of its calls on files below a folder fails, as DiskFaults
// says, or is the last thing that it does.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/disk_faults.h"

namespace {

using paramshard::test::DiskFault;
using paramshard::test::DiskFaults;
using paramshard::test::DiskFaultsPage;

// Block size of writes around the page cache, which consist of whole blocks.
constexpr size_t kBlockBytes = 4096;
constexpr size_t kMaxPathBytes = 4096;

// Null if no test has started this process: then every call goes to the C library.
DiskFaultsPage* page = nullptr;
const char* folder = nullptr;

// Programs may open files before this runs, but no files of saves.
[[gnu::constructor]] void MapPage() {
  const char* const path = std::getenv(DiskFaults::kVariable);
  const char* const below = std::getenv(DiskFaults::kFolderVariable);
  if (path == nullptr || below == nullptr) return;
  const auto fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0));
  if (fd < 0) return;
  void* const memory = mmap(nullptr, sizeof(DiskFaultsPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  if (memory == MAP_FAILED) return;
  folder = below;
  page = static_cast<DiskFaultsPage*>(memory);
}

bool IsCounted() { return page != nullptr && page->at != 0; }

bool IsBelow(const char* path) {
  const size_t length = std::strlen(folder);
  return std::strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

bool IsBelow(int fd) {
  char name[32];
  char path[kMaxPathBytes];
  std::snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
  const int error = errno;
  const long size = syscall(SYS_readlinkat, AT_FDCWD, name, path, sizeof(path) - 1);
  errno = error;
  if (size < 0) return false;
  path[size] = '\0';
  return IsBelow(path);
}

[[noreturn]] void Die() {
  syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
  while (true) syscall(SYS_pause);
}

// Counts a call, and returns true if it is the call that the test has chosen.
bool IsChosen() { return page->calls.fetch_add(1) + 1 == page->at; }

// Counts a call that is no write. Returns the error that it fails with; 0: the call is made.
int ErrorOf() {
  if (!IsChosen()) return 0;
  const auto fault = static_cast<DiskFault>(page->fault.load());
  if (fault == DiskFault::kShort) return 0;
  page->hit = true;
  if (fault == DiskFault::kKill) Die();
  return fault == DiskFault::kFull ? ENOSPC : EIO;
}

template <typename Where>
bool Fails(const Where& where) {
  if (!IsCounted() || !IsBelow(where)) return false;
  const int error = ErrorOf();
  if (error != 0) errno = error;
  return error != 0;
}

size_t Half(int fd, size_t size) {
  const long flags = syscall(SYS_fcntl, fd, F_GETFL);
  const size_t unit = flags >= 0 && (flags & O_DIRECT) != 0 ? kBlockBytes : 1;
  return std::max(size / 2 / unit, size_t{1}) * unit;
}

// Returns true, with errno set, if a write has to fail. Halves `size` if the write has to be short.
bool FailsToWrite(int fd, size_t& size) {
  if (!IsCounted() || !IsBelow(fd)) return false;
  if (static_cast<DiskFault>(page->fault.load()) != DiskFault::kShort) {
    const int error = ErrorOf();
    if (error != 0) errno = error;
    return error != 0;
  }
  const size_t half = Half(fd, size);
  if (IsChosen() && half < size) {
    page->hit = true;
    size = half;
  }
  return false;
}

int Open(int directory, const char* path, int flags, mode_t mode) {
  return Fails(path) ? -1 : static_cast<int>(syscall(SYS_openat, directory, path, flags, mode));
}

ssize_t Pwrite(int fd, const void* data, size_t size, off_t offset) {
  return FailsToWrite(fd, size) ? -1 : syscall(SYS_pwrite64, fd, data, size, offset);
}

int Fallocate(int fd, int mode, off_t offset, off_t size) {
  return Fails(fd) ? -1 : static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, size));
}

// The third argument of open is there where a file may be made.
mode_t ModeIn(int flags, va_list arguments) {
  const bool makes = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return makes ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

// These come before the C library's own, for the program and all libraries that it loads.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeIn(flags, arguments);
  va_end(arguments);
  return Open(AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeIn(flags, arguments);
  va_end(arguments);
  return Open(AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeIn(flags, arguments);
  va_end(arguments);
  return Open(directory, path, flags, mode);
}

int openat64(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeIn(flags, arguments);
  va_end(arguments);
  return Open(directory, path, flags, mode);
}

ssize_t write(int fd, const void* data, size_t size) {
  return FailsToWrite(fd, size) ? -1 : syscall(SYS_write, fd, data, size);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) { return Pwrite(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) { return Pwrite(fd, data, size, offset); }

int fallocate(int fd, int mode, off_t offset, off_t size) { return Fallocate(fd, mode, offset, size); }
int fallocate64(int fd, int mode, off64_t offset, off64_t size) { return Fallocate(fd, mode, offset, size); }

int fsync(int fd) { return Fails(fd) ? -1 : static_cast<int>(syscall(SYS_fsync, fd)); }
int fdatasync(int fd) { return Fails(fd) ? -1 : static_cast<int>(syscall(SYS_fdatasync, fd)); }

int rename(const char* from, const char* to) noexcept {
  return Fails(from) ? -1 : static_cast<int>(syscall(SYS_rename, from, to));
}
int renameat(int from_directory, const char* from, int to_directory, const char* to) noexcept {
  return Fails(from) ? -1 : static_cast<int>(syscall(SYS_renameat, from_directory, from, to_directory, to));
}

int unlink(const char* path) noexcept { return Fails(path) ? -1 : static_cast<int>(syscall(SYS_unlink, path)); }
int unlinkat(int directory, const char* path, int flags) noexcept {
  return Fails(path) ? -1 : static_cast<int>(syscall(SYS_unlinkat, directory, path, flags));
}

int mkdir(const char* path, mode_t mode) noexcept {
  return Fails(path) ? -1 : static_cast<int>(syscall(SYS_mkdir, path, mode));
}
int rmdir(const char* path) noexcept { return Fails(path) ? -1 : static_cast<int>(syscall(SYS_rmdir, path)); }

}  // extern "C"
