// Memory for reads around the page cache.
#ifndef PARAMSHARD_COMMON_SAFETENSORS_PAGE_BUFFER_H_
#define PARAMSHARD_COMMON_SAFETENSORS_PAGE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "absl/types/span.h"

namespace paramshard::safetensors {

// Alignment of reads and writes around the page cache, in memory and in the file, on all usual disks.
inline constexpr int64_t kPageBytes = 4096;

// A buffer of whole pages that is reused by one read after the other. Not thread-safe.
class PageBuffer {
 public:
  PageBuffer() = default;
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;

  // Returns at least `size_bytes` of uninitialized memory, and invalidates the memory returned before.
  absl::Span<uint8_t> Take(int64_t size_bytes) {
    const int64_t pages = (size_bytes + kPageBytes - 1) / kPageBytes;
    const auto bytes = static_cast<size_t>(pages * kPageBytes);
    if (pages > pages_) {
      memory_.reset(static_cast<uint8_t*>(operator new(bytes, kAlignment)));
      pages_ = pages;
    }
    return {memory_.get(), bytes};
  }

 private:
  static constexpr std::align_val_t kAlignment{kPageBytes};
  struct Deleter {
    void operator()(uint8_t* memory) const { operator delete(memory, kAlignment); }
  };
  std::unique_ptr<uint8_t, Deleter> memory_;
  int64_t pages_ = 0;
};

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_COMMON_SAFETENSORS_PAGE_BUFFER_H_
