// Owners of a device's memory.
#ifndef PARAMSHARD_SERVER_DEVICE_MEMORY_H_
#define PARAMSHARD_SERVER_DEVICE_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shared_memory/file_descriptor.h"

namespace paramshard::server {

// Use of memory by other processes.
enum class Sharing : uint8_t {
  kPrivate,    // not at all
  kReadOnly,   // mapped read-only (on a GPU by the client library's promise: the importer chooses its access)
  kReadWrite,  // mapped read-write
  kKept,       // by no trainer: its descriptor is for a keeper (server/base/kept_store.h) and for the next server
};

// A range of memory of one device. Move-only; frees itself. Empty after a move.
class Memory {
 public:
  // Stands behind a range and frees it when it is destroyed.
  class Owner {
   public:
    virtual ~Owner() = default;
    // See Memory::Discard.
    virtual void Discard() {}
  };

  // Allocates zeroed, resident host memory. RESOURCE_EXHAUSTED if the kernel refuses. `size_bytes` may be 0. `name` is
  // visible in /proc. Shared memory is sealed against growing and shrinking; kReadOnly against new writable mappings
  // too. kKept memory belongs to its user alone, and is in no core dump, which would delay the end of the process.
  static absl::StatusOr<Memory> Allocate(const std::string& name, int64_t size_bytes, Sharing sharing);

  // Adopts memory that another process allocated as kKept, with its content. The descriptor is not trusted: DATA_LOSS
  // naming the fault unless it is sealed, writable memory of this user alone, of exactly `size_bytes`, with all its
  // pages. The caller checks the content. RESOURCE_EXHAUSTED.
  static absl::StatusOr<Memory> Adopt(const std::string& name, int64_t size_bytes, wire::FileDescriptor fd);

  Memory() = default;
  // The range belongs to `owner`, which may be null. `fd` stands for it in other processes.
  Memory(uint8_t* data, int64_t size_bytes, wire::FileDescriptor fd, std::unique_ptr<Owner> owner);
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept;

  // Address on the device.
  uint8_t* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Descriptor of shared memory; -1 for private memory.
  int fd() const { return fd_.get(); }

  // Frees pages, also pages that another process still maps, if the device can do that.
  void Discard();

 private:
  // Maps a descriptor, or anonymous memory without one.
  static absl::StatusOr<Memory> Map(const std::string& name, int64_t size_bytes, wire::FileDescriptor fd);
  absl::Status LeaveOutOfDumps(const std::string& name) const;

  uint8_t* data_ = nullptr;
  int64_t size_bytes_ = 0;
  wire::FileDescriptor fd_;
  std::unique_ptr<Owner> owner_;
};

// Files with the amount of memory.
struct MemoryFiles {
  std::string meminfo = "/proc/meminfo";
  std::string cgroup = "/proc/self/cgroup";
  std::string mountinfo = "/proc/self/mountinfo";
};

// Returns the bytes that could be allocated now without swapping: the kernel's estimate for the machine in `meminfo`,
// or the free pages alone if it cannot be read; and at most the bytes that this process's control groups leave.
int64_t AvailableHostBytes(const MemoryFiles& files = {});

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_MEMORY_H_
