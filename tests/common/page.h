// A words page in ordinary memory.
#ifndef PARAMSHARD_TESTS_COMMON_PAGE_H_
#define PARAMSHARD_TESTS_COMMON_PAGE_H_

#include <cstdint>
#include <vector>

#include "common/shared_memory/words.h"

namespace paramshard::wire {

// Zeroed, as memory from the kernel.
class Page {
 public:
  explicit Page(const WordsCounts& counts)
      : lines_(Words::SizeBytes(counts) / sizeof(Line)), words_(lines_.data(), counts) {}

  const Words& words() const { return words_; }
  uint8_t* bytes() const { return reinterpret_cast<uint8_t*>(&words_.status()); }
  size_t size_bytes() const { return lines_.size() * sizeof(Line); }

 private:
  struct alignas(kCacheLineBytes) Line {
    uint8_t bytes[kCacheLineBytes];
  };

  std::vector<Line> lines_;
  Words words_;
};

}  // namespace paramshard::wire

#endif  // PARAMSHARD_TESTS_COMMON_PAGE_H_
