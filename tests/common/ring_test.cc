#include "common/shared_memory/ring.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/page.h"
#include "tests/support/effort.h"
#include "tests/support/status_matchers.h"

namespace paramshard::wire {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

class RingTest : public testing::Test {
 protected:
  // Brings both sides to a position in a fresh ring with two records, the first of which is half of the way.
  void StartAt(uint32_t position) {
    for (const uint32_t bytes : {position / 2, position - position / 2}) {
      ASSERT_TRUE(writer_.TryWrite(std::string(bytes - sizeof(uint32_t), 'x')));
      ASSERT_THAT(reader_.Read(), IsOk());
    }
  }
  void SetHead(uint32_t head) { words_.ring_head().value = head; }
  void SetLength(uint32_t length) { std::memcpy(words_.ring_bytes(), &length, sizeof(length)); }

  const Page page_{{.slots = 1, .ranks = 1, .gradient_slots = 1}};
  const Words words_ = page_.words();
  RingWriter writer_{words_};
  RingReader reader_{words_};
};

TEST_F(RingTest, AnEmptyRingHasNoRecord) { EXPECT_THAT(reader_.Read(), IsOkAndHolds(std::nullopt)); }

TEST_F(RingTest, RecordsComeOutAsTheyWentIn) {
  ASSERT_TRUE(writer_.TryWrite("one"));
  ASSERT_TRUE(writer_.TryWrite(""));
  ASSERT_TRUE(writer_.TryWrite(std::string("\0two", 4)));
  EXPECT_THAT(reader_.Read(), IsOkAndHolds(Optional(std::string("one"))));
  EXPECT_THAT(reader_.Read(), IsOkAndHolds(Optional(std::string())));
  EXPECT_THAT(reader_.Read(), IsOkAndHolds(Optional(std::string("\0two", 4))));
  EXPECT_THAT(reader_.Read(), IsOkAndHolds(std::nullopt));
}

TEST_F(RingTest, ARecordRingsTheDoorbell) {
  ASSERT_TRUE(writer_.TryWrite("x"));
  EXPECT_EQ(words_.doorbell().value, 1u);
}

TEST_F(RingTest, ARecordMayWrapAroundTheEnd) {
  StartAt(kRingBytes - 6);
  ASSERT_TRUE(writer_.TryWrite("wrapped"));
  EXPECT_THAT(reader_.Read(), IsOkAndHolds(Optional(std::string("wrapped"))));
}

TEST_F(RingTest, ALengthMayWrapAroundTheEnd) {
  StartAt(kRingBytes - 2);
  ASSERT_TRUE(writer_.TryWrite("wrapped"));
  EXPECT_THAT(reader_.Read(), IsOkAndHolds(Optional(std::string("wrapped"))));
}

TEST_F(RingTest, TheLargestRecordFits) {
  const std::string record(kMaxRecordBytes, 'x');
  ASSERT_TRUE(writer_.TryWrite(record));
  EXPECT_THAT(reader_.Read(), IsOkAndHolds(Optional(record)));
}

TEST_F(RingTest, AFullRingTakesNothingUntilItIsRead) {
  const std::string record(kRingBytes / 4 - sizeof(uint32_t), 'x');
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(writer_.TryWrite(record));
  const uint32_t rings = words_.doorbell().value;
  EXPECT_FALSE(writer_.TryWrite(""));
  EXPECT_EQ(words_.doorbell().value, rings);
  EXPECT_THAT(reader_.Read(), IsOkAndHolds(Optional(record)));
  EXPECT_TRUE(writer_.TryWrite(record));
  EXPECT_FALSE(writer_.TryWrite(""));
}

TEST_F(RingTest, AHeadFurtherThanTheRingIsRefused) {
  for (uint32_t head : {static_cast<uint32_t>(kRingBytes) + 1, 0x80000000u, 0xffffffffu}) {
    SetHead(head);
    EXPECT_THAT(reader_.Read(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("command ring"))) << head;
  }
}

TEST_F(RingTest, AHeadInsideALengthIsRefused) {
  for (uint32_t head : {1u, 2u, 3u}) {
    SetHead(head);
    EXPECT_THAT(reader_.Read(), StatusIs(absl::StatusCode::kInvalidArgument)) << head;
  }
}

TEST_F(RingTest, ALengthPastTheHeadIsRefused) {
  SetHead(100);
  SetLength(97);
  EXPECT_THAT(reader_.Read(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("97")));
  SetLength(0xffffffffu);
  EXPECT_THAT(reader_.Read(), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(RingTest, ALengthAboveTheLargestRecordIsRefused) {
  SetHead(kRingBytes);
  SetLength(kMaxRecordBytes + 1);
  EXPECT_THAT(reader_.Read(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat(kMaxRecordBytes))));
}

// A trainer can change the tail in the page: the reader does not use it.
TEST_F(RingTest, AForgedTailDoesNotMoveTheReader) {
  ASSERT_TRUE(writer_.TryWrite("one"));
  ASSERT_TRUE(writer_.TryWrite("two"));
  words_.ring_tail().value = 12345;
  EXPECT_THAT(reader_.Read(), IsOkAndHolds(Optional(std::string("one"))));
  words_.ring_tail().value = 54321;
  EXPECT_THAT(reader_.Read(), IsOkAndHolds(Optional(std::string("two"))));
}

TEST_F(RingTest, RandomBytesNeverReadPastTheRing) {
  constexpr uint32_t kSeed = 3;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937 random(kSeed);
  for (int i = 0; i < 2000; ++i) {
    for (size_t at = 0; at < kRingBytes; at += 4096) words_.ring_bytes()[at] = static_cast<uint8_t>(random());
    SetHead(random() % 3 == 0 ? random() : random() % (2 * kRingBytes));
    RingReader reader(words_);
    for (int record = 0; record < 8; ++record) {
      const auto read = reader.Read();
      if (!read.ok() || !read->has_value()) break;
      ASSERT_LE((*read)->size(), kMaxRecordBytes);
    }
  }
}

std::string RandomRecord(std::mt19937& random) {
  // Mostly commands, now and then one with client state.
  const size_t size = random() % 1000 == 0 ? random() % 20'000 : random() % 120;
  return std::string(size, static_cast<char>(random()));
}

// The ring wraps a few hundred times.
TEST_F(RingTest, AMillionRecordsCrossTwoThreads) {
  constexpr uint32_t kSeed = 4;
  const int records = Rounds(1'000'000);
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  const absl::Time deadline = absl::Now() + absl::Minutes(2);
  std::thread trainer([&] {
    std::mt19937 random(kSeed);
    for (int i = 0; i < records; ++i) {
      const std::string record = RandomRecord(random);
      while (!writer_.TryWrite(record)) {
        ASSERT_LT(absl::Now(), deadline);
        std::this_thread::yield();
      }
    }
  });
  std::mt19937 random(kSeed);
  for (int i = 0; i < records && !HasFailure();) {
    const auto record = reader_.Read();
    ASSERT_THAT(record, IsOk());
    if (!record->has_value()) {
      if (absl::Now() > deadline) break;
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(**record, RandomRecord(random)) << "record " << i;
    ++i;
  }
  trainer.join();
  EXPECT_THAT(reader_.Read(), IsOkAndHolds(std::nullopt));
}

// 2^32 bytes pass through: the positions wrap.
TEST_F(RingTest, PositionsWrapAtTwoToThe32) {
  const std::string record(150'000, 'x');
  const int64_t records = (int64_t{1} << 32) / static_cast<int64_t>(record.size()) + 10;
  for (int64_t i = 0; i < records; ++i) {
    ASSERT_TRUE(writer_.TryWrite(record));
    const auto read = reader_.Read();
    ASSERT_THAT(read, IsOk());
    ASSERT_EQ((*read)->size(), record.size());
  }
}

}  // namespace
}  // namespace paramshard::wire
