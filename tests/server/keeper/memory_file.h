// Shared memory with bytes in it, which tests give away and look for again.
#ifndef PARAMSHARD_TESTS_SERVER_KEEPER_MEMORY_FILE_H_
#define PARAMSHARD_TESTS_SERVER_KEEPER_MEMORY_FILE_H_

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "absl/strings/string_view.h"
#include "common/shared_memory/file_descriptor.h"
#include "kernels/base/check.h"

namespace paramshard::test {

inline wire::FileDescriptor MemoryFile(absl::string_view bytes) {
  wire::FileDescriptor file(memfd_create("paramshard-test", MFD_CLOEXEC));
  PARAMSHARD_CHECK(write(file.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  return file;
}

inline std::string BytesOf(int file) {
  char bytes[256];
  const ssize_t size = pread(file, bytes, sizeof(bytes), 0);
  return size < 0 ? "unreadable" : std::string(bytes, size);
}

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_SERVER_KEEPER_MEMORY_FILE_H_
