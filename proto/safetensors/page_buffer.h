// Memory that a disk can write to by itself.
#ifndef PARAMSHARD_PROTO_SAFETENSORS_PAGE_BUFFER_H_
#define PARAMSHARD_PROTO_SAFETENSORS_PAGE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "absl/types/span.h"

namespace paramshard::safetensors {

// What reads and writes around the page cache are multiples of, in memory and in the file, on all usual disks.
inline constexpr int64_t kPageBytes = 4096;

// Whole pages, for one read after another. Not thread-safe.
class PageBuffer {
 public:
  PageBuffer() = default;
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;

  // At least so many bytes, with nothing in particular in them. What Take gave before is gone.
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

#endif  // PARAMSHARD_PROTO_SAFETENSORS_PAGE_BUFFER_H_
