#include "client/internal/mapped_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
namespace {

absl::Status CheckFile(const std::string& name, int fd, int64_t size_bytes) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return absl::InternalError(absl::StrCat("map ", name, ": ", strerror(errno)));
  if (file.st_size != size_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("map ", name, ": want ", size_bytes, " bytes, got ", file.st_size));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::FailedPreconditionError(absl::StrCat("map ", name, ": the file is not sealed against shrinking"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MappedMemory> MappedMemory::Map(const std::string& name, const wire::FileDescriptor& fd,
                                               int64_t size_bytes, Access access) {
  RETURN_IF_ERROR(CheckFile(name, fd.get(), size_bytes));
  MappedMemory memory;
  if (size_bytes == 0) return memory;
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = mmap(nullptr, size_bytes, protection, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("map ", name, ": ", size_bytes, " bytes: ", strerror(errno)));
  }
  madvise(data, size_bytes, MADV_DONTFORK);
  memory.data_ = static_cast<uint8_t*>(data);
  memory.size_bytes_ = size_bytes;
  return memory;
}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  if (this != &other) {
    Reset();
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

void MappedMemory::Reset() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
  data_ = nullptr;
  size_bytes_ = 0;
}

}  // namespace paramshard::internal
