// Owners of a device's memory.
#ifndef PARAMSHARD_SERVER_DEVICE_MEMORY_H_
#define PARAMSHARD_SERVER_DEVICE_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/wire/handoff.h"

namespace paramshard::server {

// How other processes may use memory.
enum class Sharing : uint8_t {
  kPrivate,    // not at all
  kReadOnly,   // mapped read-only: sealed against growing, shrinking and new writable mappings
  kReadWrite,  // mapped read-write: sealed against growing and shrinking
};

// A zeroed, resident range of host memory. Move-only; frees itself. Empty after a move.
class Memory {
 public:
  // RESOURCE_EXHAUSTED when the kernel refuses. `size_bytes` may be 0. `name` is seen in /proc.
  static absl::StatusOr<Memory> Allocate(const std::string& name, int64_t size_bytes, Sharing sharing);

  Memory() = default;
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept;
  ~Memory() { Reset(); }

  uint8_t* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Descriptor of shared memory; -1 for private memory.
  int fd() const { return fd_.get(); }

  // Gives the pages back to the kernel, also those that another process still maps.
  void Discard();

 private:
  void Reset();

  uint8_t* data_ = nullptr;
  int64_t size_bytes_ = 0;
  wire::FileDescriptor fd_;
};

// Bytes that could be allocated now without swapping, as the kernel estimates it.
int64_t AvailableHostBytes();

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_MEMORY_H_
