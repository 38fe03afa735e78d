#include "kernels/reduce/position_digest.h"

#include <cstring>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/simd_clones.h"

namespace paramshard {
namespace {

template <typename Element>
PARAMSHARD_ALWAYS_INLINE PositionDigest Digest(const uint8_t* elements, int64_t count, uint64_t first_position) {
  uint64_t low = 0, high = 0;
  for (int64_t i = 0; i < count; ++i) {
    Element bits;
    memcpy(&bits, elements + i * static_cast<int64_t>(sizeof(bits)), sizeof(bits));
    const PositionDigest element = DigestOfElement(first_position + i, bits);
    low += element.low;
    high += element.high;
  }
  return {.low = low, .high = high};
}

PARAMSHARD_SIMD_CLONES
PositionDigest DigestBytes(const uint8_t* elements, int64_t count, uint64_t first_position) {
  return Digest<uint8_t>(elements, count, first_position);
}

PARAMSHARD_SIMD_CLONES
PositionDigest DigestHalves(const uint8_t* elements, int64_t count, uint64_t first_position) {
  return Digest<uint16_t>(elements, count, first_position);
}

PARAMSHARD_SIMD_CLONES
PositionDigest DigestWords(const uint8_t* elements, int64_t count, uint64_t first_position) {
  return Digest<uint32_t>(elements, count, first_position);
}

}  // namespace

std::string PositionDigest::ToString() const { return absl::StrFormat("%016x%016x", high, low); }

PositionDigest DigestElements(const void* elements, int element_bytes, int64_t count, int64_t first_position) {
  const auto* const bytes = static_cast<const uint8_t*>(elements);
  const auto first = static_cast<uint64_t>(first_position);
  if (element_bytes == 1) return DigestBytes(bytes, count, first);
  if (element_bytes == 2) return DigestHalves(bytes, count, first);
  PARAMSHARD_CHECK(element_bytes == 4);
  return DigestWords(bytes, count, first);
}

}  // namespace paramshard
