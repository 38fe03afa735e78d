#include "kernels/reduce/position_digest.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace paramshard {
namespace {

// The header's formula, literally.
uint64_t Mix(uint64_t value) {
  value ^= value >> 30;
  value *= 0xbf58476d1ce4e5b9u;
  value ^= value >> 27;
  value *= 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

PositionDigest SlowDigest(const std::vector<uint8_t>& bytes, int element_bytes, int64_t first_position) {
  PositionDigest digest;
  for (size_t i = 0; i < bytes.size() / element_bytes; ++i) {
    uint32_t bits = 0;
    for (int byte = 0; byte < element_bytes; ++byte) bits |= uint32_t{bytes[i * element_bytes + byte]} << (8 * byte);
    const uint64_t key = Mix(first_position + i + 0x9e3779b97f4a7c15u);
    digest.low += Mix(key ^ bits);
    digest.high += Mix(key ^ (uint64_t{bits} << 32) ^ 0x9e3779b97f4a7c15u);
  }
  return digest;
}

PositionDigest Digest(const std::vector<uint8_t>& bytes, int element_bytes, int64_t first_position = 0) {
  return DigestElements(bytes.data(), element_bytes, static_cast<int64_t>(bytes.size()) / element_bytes,
                        first_position);
}

std::vector<uint8_t> Bytes(size_t count) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(i * 37 + i / 256);
  return bytes;
}

TEST(PositionDigestTest, IsTheDocumentedFormula) {
  for (const int element_bytes : {1, 2, 4}) {
    for (const size_t count : {0, 1, 7, 64, 1001}) {
      for (const int64_t first : {int64_t{0}, int64_t{12345}, int64_t{1} << 40}) {
        const std::vector<uint8_t> bytes = Bytes(count * element_bytes);
        EXPECT_EQ(Digest(bytes, element_bytes, first), SlowDigest(bytes, element_bytes, first))
            << element_bytes << " " << count << " " << first;
      }
    }
  }
}

TEST(PositionDigestTest, IsTheSameForEver) {
  EXPECT_EQ(Digest(Bytes(1024), 4).ToString(), "849781e9fa02ab7a6ec251f524ce37cb");
}

TEST(PositionDigestTest, PartsAddUp) {
  const std::vector<uint8_t> bytes = Bytes(4096);
  PositionDigest sum = Digest({bytes.begin() + 1000, bytes.end()}, 2, 500);
  sum += Digest({bytes.begin(), bytes.begin() + 1000}, 2, 0);
  EXPECT_EQ(sum, Digest(bytes, 2));
}

TEST(PositionDigestTest, EveryBitAndEveryPositionCounts) {
  const std::vector<uint8_t> bytes = Bytes(256);
  const PositionDigest digest = Digest(bytes, 4);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::vector<uint8_t> other = bytes;
    other[bit / 8] ^= 1 << (bit % 8);
    EXPECT_NE(Digest(other, 4).low, digest.low);
    EXPECT_NE(Digest(other, 4).high, digest.high);
  }
  EXPECT_NE(Digest(bytes, 4, 1), digest);
  EXPECT_NE(Digest(std::vector<uint8_t>(8), 4), Digest(std::vector<uint8_t>(4), 4)) << "zeros count";
  std::vector<uint8_t> swapped = bytes;
  std::swap_ranges(swapped.begin(), swapped.begin() + 4, swapped.begin() + 4);
  EXPECT_NE(Digest(swapped, 4), digest);
}

}  // namespace
}  // namespace paramshard
