// Bytes as a file, for readers that take a path.
#ifndef PARAMSHARD_TESTS_FUZZ_MEMORY_FILE_H_
#define PARAMSHARD_TESTS_FUZZ_MEMORY_FILE_H_

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"

namespace paramshard {

class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes = {}) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    PARAMSHARD_CHECK(fd_ >= 0);
    Write(bytes);
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // Replaces the content of the file.
  void Write(const std::string& bytes) const {
    PARAMSHARD_CHECK(ftruncate(fd_, 0) == 0);
    PARAMSHARD_CHECK(pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }
  std::string path() const { return absl::StrCat("/proc/self/fd/", fd_); }

 private:
  const int fd_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_FUZZ_MEMORY_FILE_H_
