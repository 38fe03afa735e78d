// System calls on files that change something, lock, or look before it: the seam where tests make them fail, kill
// the process between two of them, and write down their order.
#ifndef PARAMSHARD_SERVER_BASE_DISK_CALLS_H_
#define PARAMSHARD_SERVER_BASE_DISK_CALLS_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace paramshard::server {

// Each does one system call, once, and answers as it does: -1 and errno. What they mean together is Disk's business.
// Whole files are read elsewhere, by proto/checkpoint, which believes nothing of them. Thread-safe.
class DiskCalls {
 public:
  virtual ~DiskCalls() = default;

  virtual int Open(const std::string& path, int flags, mode_t mode);
  virtual int Close(int fd);
  virtual ssize_t Pwrite(int fd, const void* data, size_t size_bytes, int64_t offset_bytes);
  virtual int Fallocate(int fd, int64_t size_bytes);
  virtual int Fsync(int fd);
  virtual int Fdatasync(int fd);
  // Whether writes go around the page cache: then they are of whole pages, in memory and in the
  // file. EINVAL where the file system cannot.
  virtual int SetDirect(int fd, bool direct);
  virtual int Flock(int fd, int operation);

  virtual int Mkdir(const std::string& path, mode_t mode);
  virtual int Rename(const std::string& from, const std::string& to);
  virtual int Unlink(const std::string& path);
  virtual int Rmdir(const std::string& path);

  virtual int Stat(const std::string& path, struct stat* status);
  virtual int Lstat(const std::string& path, struct stat* status);
  virtual int Access(const std::string& path, int mode);
  // Names of a folder's entries, without "." and "..". (Several calls, which fail as one.)
  virtual int List(const std::string& path, std::vector<std::string>* names);
  // What a process without privileges may still write to the file system of a path.
  virtual int64_t FreeBytes(const std::string& path);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_DISK_CALLS_H_
