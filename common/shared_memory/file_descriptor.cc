#include "common/shared_memory/file_descriptor.h"

#include <unistd.h>

namespace paramshard::wire {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void FileDescriptor::Reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

}  // namespace paramshard::wire
