#include "server/device/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

absl::Status Refused(const std::string& name, int64_t size_bytes, int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("allocate ", name, ": ", size_bytes, " bytes needed, the kernel says: ", strerror(error)));
}

// The kernel promises private memory freely and hands out shared pages until the machine is full: then it kills.
absl::Status CheckAvailable(const std::string& name, int64_t size_bytes) {
  const int64_t available = AvailableHostBytes();
  if (size_bytes <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("allocate ", name, ": ", size_bytes, " bytes needed, ", available, " available"));
}

absl::StatusOr<wire::FileDescriptor> MakeFile(const std::string& name, int64_t size_bytes) {
  wire::FileDescriptor fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), size_bytes) != 0) return Refused(name, size_bytes, errno);
  // Reserves the pages: a full machine refuses here instead of killing a process at its first write.
  const int error = size_bytes > 0 ? posix_fallocate(fd.get(), 0, size_bytes) : 0;
  if (error != 0) return Refused(name, size_bytes, error);
  return fd;
}

// After the daemon has its own writable mapping, which FUTURE_WRITE leaves alone.
absl::Status Seal(const std::string& name, int fd, Sharing sharing) {
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (sharing == Sharing::kReadOnly) seals |= F_SEAL_FUTURE_WRITE;
  if (fcntl(fd, F_ADD_SEALS, seals) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("seal ", name, ": ", strerror(errno)));
}

}  // namespace

absl::StatusOr<Memory> Memory::Allocate(const std::string& name, int64_t size_bytes, Sharing sharing) {
  RETURN_IF_ERROR(CheckAvailable(name, size_bytes));
  Memory memory;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
  if (sharing != Sharing::kPrivate) {
    ASSIGN_OR_RETURN(memory.fd_, MakeFile(name, size_bytes));
    flags = MAP_SHARED | MAP_POPULATE;
  }
  if (size_bytes > 0) {
    void* data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, flags, memory.fd_.get(), 0);
    if (data == MAP_FAILED) return Refused(name, size_bytes, errno);
    memory.data_ = static_cast<uint8_t*>(data);
    memory.size_bytes_ = size_bytes;
  }
  if (sharing != Sharing::kPrivate) RETURN_IF_ERROR(Seal(name, memory.fd(), sharing));
  return memory;
}

Memory& Memory::operator=(Memory&& other) noexcept {
  if (this != &other) {
    Reset();
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    fd_ = std::move(other.fd_);
  }
  return *this;
}

void Memory::Reset() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
  data_ = nullptr;
  size_bytes_ = 0;
  fd_.Reset();
}

void Memory::Discard() {
  if (fd_.valid()) fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, size_bytes_);
}

int64_t AvailableHostBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  int64_t kibibytes = 0;
  std::string unit;
  while (meminfo >> key >> kibibytes) {
    if (key == "MemAvailable:") return kibibytes * 1024;
    std::getline(meminfo, unit);
  }
  return std::numeric_limits<int64_t>::max();
}

}  // namespace paramshard::server
