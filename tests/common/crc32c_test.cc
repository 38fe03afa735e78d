#include "common/shared_memory/crc32c.h"

#include <string>

#include "gtest/gtest.h"

namespace paramshard::wire {
namespace {

std::string Ascending(int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i));
  return bytes;
}

// RFC 3720, appendix B.4.
TEST(Crc32cTest, MatchesThePublishedVectors) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(Ascending(32)), 0x46dd794eu);
  const std::string ascending = Ascending(32);
  EXPECT_EQ(Crc32c(std::string(ascending.rbegin(), ascending.rend())), 0x113fdb5cu);
}

TEST(Crc32cTest, OfNothingIsZero) { EXPECT_EQ(Crc32c(""), 0u); }

// Computes it bit by bit, as the polynomial is defined.
uint32_t Reference(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

TEST(Crc32cTest, EveryLengthAndAlignmentMatchesTheDefinition) {
  const std::string bytes = Ascending(100);
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t size = 0; begin + size <= bytes.size(); ++size) {
      const std::string part = bytes.substr(begin, size);
      ASSERT_EQ(Crc32c(absl::string_view(bytes).substr(begin, size)), Reference(part)) << begin << ", " << size;
    }
  }
}

TEST(Crc32cTest, AFlippedBitChangesIt) {
  const std::string bytes = Ascending(64);
  for (int bit = 0; bit < 64 * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(Crc32c(flipped), Crc32c(bytes)) << "bit " << bit;
  }
}

}  // namespace
}  // namespace paramshard::wire
