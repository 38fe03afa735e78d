// Owner of a file descriptor.
#ifndef PARAMSHARD_COMMON_SHARED_MEMORY_FILE_DESCRIPTOR_H_
#define PARAMSHARD_COMMON_SHARED_MEMORY_FILE_DESCRIPTOR_H_

#include <utility>

namespace paramshard::wire {

// Owns a file descriptor. Move-only; empty is -1.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset();
  // Transfers ownership to the caller.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace paramshard::wire

#endif  // PARAMSHARD_COMMON_SHARED_MEMORY_FILE_DESCRIPTOR_H_
