#include "common/shared_memory/ring.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace paramshard::wire {
namespace {

constexpr uint32_t kHeaderBytes = sizeof(uint32_t);
static_assert((kRingBytes & (kRingBytes - 1)) == 0, "positions wrap at 2^32, which the ring must divide");

void CopyIn(uint8_t* ring, uint32_t position, const void* source, uint32_t size) {
  const uint32_t offset = position % kRingBytes;
  const uint32_t first = std::min<uint32_t>(size, kRingBytes - offset);
  std::memcpy(ring + offset, source, first);
  std::memcpy(ring, static_cast<const uint8_t*>(source) + first, size - first);
}

void CopyOut(const uint8_t* ring, uint32_t position, void* target, uint32_t size) {
  const uint32_t offset = position % kRingBytes;
  const uint32_t first = std::min<uint32_t>(size, kRingBytes - offset);
  std::memcpy(target, ring + offset, first);
  std::memcpy(static_cast<uint8_t*>(target) + first, ring, size - first);
}

}  // namespace

bool RingWriter::TryWrite(absl::string_view record) {
  const uint32_t head = words_.ring_head().value.load(std::memory_order_relaxed);
  const uint32_t tail = words_.ring_tail().value.load(std::memory_order_acquire);
  const uint32_t size = static_cast<uint32_t>(record.size());
  if (kRingBytes - (head - tail) < kHeaderBytes + size) return false;
  CopyIn(words_.ring_bytes(), head, &size, kHeaderBytes);
  CopyIn(words_.ring_bytes(), head + kHeaderBytes, record.data(), size);
  words_.ring_head().value.store(head + kHeaderBytes + size, std::memory_order_release);
  words_.Ring();
  return true;
}

absl::StatusOr<std::optional<std::string>> RingReader::Read() {
  const uint32_t used = words_.ring_head().value.load(std::memory_order_acquire) - tail_;
  if (used == 0) return std::nullopt;
  uint32_t size = 0;
  if (used <= kRingBytes && used >= kHeaderBytes) CopyOut(words_.ring_bytes(), tail_, &size, kHeaderBytes);
  if (used > kRingBytes || used < kHeaderBytes || size > kMaxRecordBytes || size > used - kHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("command ring: want a record of at most ", kMaxRecordBytes,
                                                   " bytes, got ", used, " bytes with a record length of ", size));
  }
  std::string record(size, '\0');
  CopyOut(words_.ring_bytes(), tail_ + kHeaderBytes, record.data(), size);
  tail_ += kHeaderBytes + size;
  words_.ring_tail().value.store(tail_, std::memory_order_release);
  return record;
}

}  // namespace paramshard::wire
