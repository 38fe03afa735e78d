// Digests of arrays that know the position of every element: parts of an array, digested by themselves in any order, add
// up to the digest of the whole.
//
// The digest is the sum, modulo 2^64 each, of two mixes of every element:
//   key  = Mix(position + 0x9e3779b97f4a7c15)
//   low  = sum of Mix(key ^ bits)
//   high = sum of Mix(key ^ (bits * 2^32) ^ 0x9e3779b97f4a7c15)
// where bits are those of the element, as an unsigned number, and Mix is the last step of SplitMix64. It finds
// differences that nobody has made on purpose: it is no signature.
#ifndef PARAMSHARD_KERNELS_REDUCE_POSITION_DIGEST_H_
#define PARAMSHARD_KERNELS_REDUCE_POSITION_DIGEST_H_

#include <cstdint>
#include <string>

#include "kernels/base/host_device.h"

namespace paramshard {

struct PositionDigest {
  uint64_t low = 0;
  uint64_t high = 0;

  PARAMSHARD_HOST_DEVICE PositionDigest& operator+=(const PositionDigest& other) {
    low += other.low;
    high += other.high;
    return *this;
  }
  friend bool operator==(const PositionDigest&, const PositionDigest&) = default;

  // 32 hexadecimal digits.
  std::string ToString() const;
};

PARAMSHARD_HOST_DEVICE uint64_t SplitMix64(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

PARAMSHARD_HOST_DEVICE PositionDigest DigestOfElement(uint64_t position, uint32_t bits) {
  const uint64_t key = SplitMix64(position + 0x9e3779b97f4a7c15u);
  return {.low = SplitMix64(key ^ bits), .high = SplitMix64(key ^ (uint64_t{bits} << 32) ^ 0x9e3779b97f4a7c15u)};
}

// Returns the digest of `count` elements of 1, 2 or 4 bytes at neighbouring positions. `elements` may be of any
// alignment.
PositionDigest DigestElements(const void* elements, int element_bytes, int64_t count, int64_t first_position);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_REDUCE_POSITION_DIGEST_H_
