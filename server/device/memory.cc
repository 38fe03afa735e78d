#include "server/device/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/device/memory_cgroup.h"

namespace paramshard::server {
namespace {

// Returns advice to raise the limit that the kernel has met.
absl::string_view AdviceFor(int error) {
  switch (error) {
    case EFBIG:
      return "; raise the limit of file sizes, which counts shared memory (ulimit -f, LimitFSIZE)";
    case EMFILE:
      return "; raise the limit of open files (ulimit -n, LimitNOFILE)";
    case ENOSYS:
    case EPERM:
      return "; want a seccomp profile that allows memfd_create, fallocate, fcntl and madvise";
    default:
      return "";
  }
}

absl::Status Refused(const std::string& name, int64_t size_bytes, int error) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "allocate ", name, ": ", size_bytes, " bytes needed, the kernel says: ", strerror(error), AdviceFor(error)));
}

// Checks before allocating: the kernel overcommits private memory and hands out shared pages until the machine is full,
// and then kills processes.
absl::Status CheckAvailable(const std::string& name, int64_t size_bytes) {
  const int64_t available = AvailableHostBytes();
  if (size_bytes <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("allocate ", name, ": ", size_bytes, " bytes needed, ", available, " available"));
}

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kWriteSeals = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;
constexpr mode_t kKeptMode = S_IRUSR | S_IWUSR;
constexpr int64_t kBlockBytes = 512;  // unit of fstat's block count

absl::StatusOr<wire::FileDescriptor> MakeFile(const std::string& name, int64_t size_bytes, Sharing sharing) {
  wire::FileDescriptor fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), size_bytes) != 0) return Refused(name, size_bytes, errno);
  if (sharing == Sharing::kKept && fchmod(fd.get(), kKeptMode) != 0) return Refused(name, size_bytes, errno);
  // Reserves the pages: a full machine refuses here instead of killing a process at its first write.
  const int error = size_bytes > 0 ? posix_fallocate(fd.get(), 0, size_bytes) : 0;
  if (error != 0) return Refused(name, size_bytes, error);
  return fd;
}

// Seals after the daemon has its own writable mapping, which FUTURE_WRITE leaves alone.
absl::Status Seal(const std::string& name, int fd, Sharing sharing) {
  int seals = kSizeSeals;
  if (sharing == Sharing::kReadOnly) seals |= F_SEAL_FUTURE_WRITE;
  if (fcntl(fd, F_ADD_SEALS, seals) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("seal ", name, ": ", strerror(errno)));
}

absl::Status NotAdopted(const std::string& name, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("adopt ", name, ": ", what));
}

absl::Status CheckAdopted(const std::string& name, int64_t size_bytes, int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return NotAdopted(name, "want memory, got something else");
  if (info.st_size != size_bytes) {
    return NotAdopted(name, absl::StrCat("want ", size_bytes, " bytes, got ", info.st_size));
  }
  if (info.st_uid != geteuid() || (info.st_mode & 07777) != kKeptMode) {
    return NotAdopted(name, "want memory of this user alone, got memory that others own or may use");
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) != O_RDWR) return NotAdopted(name, "the descriptor is not open for writing");
  // A file of a disk has no seals. Memory that can be cut would end the process that reads it.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals || (seals & kWriteSeals) != 0) {
    return NotAdopted(name, "want memory sealed against growing and shrinking, and not against writing");
  }
  // Missing pages were freed, and their content is lost.
  if (info.st_blocks * kBlockBytes < size_bytes) return NotAdopted(name, "some of its pages are missing");
  return absl::OkStatus();
}

// Maps zeroed, resident memory, in huge pages if the kernel has them: pages of 4 KiB take twice as long to allocate,
// and copies into them lose time with address translation. Returns MAP_FAILED with errno on failure.
void* MapPrivate(int64_t size_bytes) {
  const auto map = [size_bytes](int flags) {
    return mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  };
  void* const data = map(0);
  if (data == MAP_FAILED) return data;
  madvise(data, size_bytes, MADV_HUGEPAGE);
  if (madvise(data, size_bytes, MADV_POPULATE_WRITE) == 0) return data;
  const int error = errno;
  munmap(data, size_bytes);
  // Linux before 5.14 does not know the advice.
  if (error == EINVAL) return map(MAP_POPULATE);
  errno = error;
  return MAP_FAILED;
}

int64_t AvailableInMachine(const std::string& meminfo) {
  std::ifstream lines(meminfo);
  std::string key;
  int64_t kibibytes = 0;
  std::string unit;
  while (lines >> key >> kibibytes) {
    if (key == "MemAvailable:") return kibibytes * 1024;
    std::getline(lines, unit);
  }
  // This needs neither /proc nor a descriptor.
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return 0;
  return static_cast<int64_t>(info.freeram) * info.mem_unit;
}

class HostRange final : public Memory::Owner {
 public:
  // `fd` is -1 for private memory, and stays open for as long as the range.
  HostRange(void* data, int64_t size_bytes, int fd) : data_(data), size_bytes_(size_bytes), fd_(fd) {}
  ~HostRange() override { munmap(data_, size_bytes_); }

  void Discard() override {
    if (fd_ >= 0) fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, size_bytes_);
  }

 private:
  void* const data_;
  const int64_t size_bytes_;
  const int fd_;
};

}  // namespace

absl::StatusOr<Memory> Memory::Allocate(const std::string& name, int64_t size_bytes, Sharing sharing) {
  RETURN_IF_ERROR(CheckAvailable(name, size_bytes));
  wire::FileDescriptor fd;
  if (sharing != Sharing::kPrivate) {
    ASSIGN_OR_RETURN(fd, MakeFile(name, size_bytes, sharing));
  }
  ASSIGN_OR_RETURN(Memory memory, Map(name, size_bytes, std::move(fd)));
  if (sharing != Sharing::kPrivate) RETURN_IF_ERROR(Seal(name, memory.fd(), sharing));
  if (sharing == Sharing::kKept) RETURN_IF_ERROR(memory.LeaveOutOfDumps(name));
  return memory;
}

absl::StatusOr<Memory> Memory::Adopt(const std::string& name, int64_t size_bytes, wire::FileDescriptor fd) {
  RETURN_IF_ERROR(CheckAdopted(name, size_bytes, fd.get()));
  ASSIGN_OR_RETURN(Memory memory, Map(name, size_bytes, std::move(fd)));
  RETURN_IF_ERROR(memory.LeaveOutOfDumps(name));
  return memory;
}

absl::StatusOr<Memory> Memory::Map(const std::string& name, int64_t size_bytes, wire::FileDescriptor fd) {
  if (size_bytes == 0) return Memory(nullptr, 0, std::move(fd), nullptr);
  void* const data = fd.valid()
                         ? mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0)
                         : MapPrivate(size_bytes);
  if (data == MAP_FAILED) return Refused(name, size_bytes, errno);
  auto range = std::make_unique<HostRange>(data, size_bytes, fd.get());
  return Memory(static_cast<uint8_t*>(data), size_bytes, std::move(fd), std::move(range));
}

absl::Status Memory::LeaveOutOfDumps(const std::string& name) const {
  if (size_bytes_ == 0 || madvise(data_, size_bytes_, MADV_DONTDUMP) == 0) return absl::OkStatus();
  return Refused(name, size_bytes_, errno);
}

Memory::Memory(uint8_t* data, int64_t size_bytes, wire::FileDescriptor fd, std::unique_ptr<Owner> owner)
    : data_(data), size_bytes_(size_bytes), fd_(std::move(fd)), owner_(std::move(owner)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  if (this != &other) {
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    owner_ = std::move(other.owner_);
    fd_ = std::move(other.fd_);
  }
  return *this;
}

void Memory::Discard() {
  if (owner_ != nullptr) owner_->Discard();
}

int64_t AvailableHostBytes(const MemoryFiles& files) {
  const int64_t machine = AvailableInMachine(files.meminfo);
  return std::min(machine, BytesLeftByCgroups(files.cgroup, files.mountinfo).value_or(machine));
}

}  // namespace paramshard::server
