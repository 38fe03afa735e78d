// System calls that change, lock or look at files: the seam where tests make them fail, kill the process between two
// of them, and record their order.
#ifndef PARAMSHARD_SERVER_BASE_DISK_CALLS_H_
#define PARAMSHARD_SERVER_BASE_DISK_CALLS_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace paramshard::server {

// Each function makes one system call, once, and returns its result: -1 and errno on failure. Disk makes sense of
// them. Whole files are read by common/checkpoint, which trusts nothing in them. Thread-safe.
class DiskCalls {
 public:
  virtual ~DiskCalls() = default;

  virtual int Open(const std::string& path, int flags, mode_t mode);
  virtual int Close(int fd);
  virtual ssize_t Pwrite(int fd, const void* data, size_t size_bytes, int64_t offset_bytes);
  virtual int Fallocate(int fd, int64_t size_bytes);
  virtual int Fsync(int fd);
  virtual int Fdatasync(int fd);
  // Sets whether writes go around the page cache (O_DIRECT); such writes are whole pages, in memory and in the file.
  // EINVAL if the file system cannot.
  virtual int SetDirect(int fd, bool direct);
  virtual int Flock(int fd, int operation);

  virtual int Mkdir(const std::string& path, mode_t mode);
  virtual int Rename(const std::string& from, const std::string& to);
  virtual int Unlink(const std::string& path);
  virtual int Rmdir(const std::string& path);

  virtual int Stat(const std::string& path, struct stat* status);
  virtual int Lstat(const std::string& path, struct stat* status);
  virtual int Access(const std::string& path, int mode);
  // Lists the names of a folder's entries, without "." and "..". Makes several calls, which fail as one.
  virtual int List(const std::string& path, std::vector<std::string>* names);
  // Returns the free space of a path's file system for a process without privileges.
  virtual int64_t FreeBytes(const std::string& path);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_DISK_CALLS_H_
