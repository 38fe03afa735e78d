// Owners of a device's memory.
#ifndef PARAMSHARD_SERVER_DEVICE_MEMORY_H_
#define PARAMSHARD_SERVER_DEVICE_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/handoff.h"

namespace paramshard::server {

// Says how other processes may use memory.
enum class Sharing : uint8_t {
  kPrivate,    // not at all
  kReadOnly,   // mapped read-only (on a GPU by the client library's promise: whoever imports memory chooses its access)
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

  // Zeroed, resident host memory. RESOURCE_EXHAUSTED when the kernel refuses. `size_bytes` may be 0. `name` is seen in
  // /proc. Shared memory is sealed against growing and shrinking; kReadOnly against new writable mappings too.
  // What is kept belongs to its user alone, and is in no core dump: whoever waits for the end of the process does not
  // wait for that.
  static absl::StatusOr<Memory> Allocate(const std::string& name, int64_t size_bytes, Sharing sharing);

  // Memory that another process allocated as kKept, with what it holds. The descriptor may be anything, from anybody:
  // DATA_LOSS saying what is wrong with it unless it is of sealed, writable memory of this user alone, of just so many
  // bytes, all of them there. What the bytes are is for the caller to check. RESOURCE_EXHAUSTED.
  static absl::StatusOr<Memory> Adopt(const std::string& name, int64_t size_bytes, wire::FileDescriptor fd);

  Memory() = default;
  // The range belongs to `owner`, which may be null. `fd` stands for it in other processes.
  Memory(uint8_t* data, int64_t size_bytes, wire::FileDescriptor fd, std::unique_ptr<Owner> owner);
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept;

  // The device's address.
  uint8_t* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Descriptor of shared memory; -1 for private memory.
  int fd() const { return fd_.get(); }

  // Gives pages back, also those that another process still maps, where the device can do that.
  void Discard();

 private:
  // Anonymous memory without a descriptor.
  static absl::StatusOr<Memory> Map(const std::string& name, int64_t size_bytes, wire::FileDescriptor fd);
  absl::Status LeaveOutOfDumps(const std::string& name) const;

  uint8_t* data_ = nullptr;
  int64_t size_bytes_ = 0;
  wire::FileDescriptor fd_;
  std::unique_ptr<Owner> owner_;
};

// Files that tell how much memory there is.
struct MemoryFiles {
  std::string meminfo = "/proc/meminfo";
  std::string cgroup = "/proc/self/cgroup";
  std::string mountinfo = "/proc/self/mountinfo";
};

// Bytes that could be allocated now without swapping: as the kernel estimates it for the machine in `meminfo`, or the
// free pages alone where that cannot be read; and no more than this process's control groups leave to it.
int64_t AvailableHostBytes(const MemoryFiles& files = {});

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_MEMORY_H_
