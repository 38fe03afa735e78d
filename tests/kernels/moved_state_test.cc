#include "kernels/optim/moved_state.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/optim/state_bands.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/random_seed.h"

namespace paramshard {
namespace {

using testing::ElementsAre;
using testing::FieldsAre;
using testing::IsEmpty;

// Addresses that are never read.
template <typename T>
T* At(int64_t address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}
uint8_t* Byte(int64_t address) { return At<uint8_t>(address); }

TEST(MovedStateTest, EveryArrayIsSoManyBytesFurtherOnAndNoneStaysNone) {
  const OptimizerState whole = {.master = At<float>(0x1000),
                                .remainder = At<int16_t>(0x2000),
                                .moments = {{{At<void>(0x3000), At<float>(0x4000), MomentType::kFP8},
                                             {At<void>(0x5000), At<float>(0x6000), MomentType::kFP16}}},
                                .weights = At<uint16_t>(0x7000)};
  const OptimizerState moved = MovedBy(whole, -0x200);
  EXPECT_EQ(moved.master, At<float>(0x0e00));
  EXPECT_EQ(moved.remainder, At<int16_t>(0x1e00));
  EXPECT_THAT(moved.moments.values, ElementsAre(FieldsAre(At<void>(0x2e00), At<float>(0x3e00), MomentType::kFP8),
                                                FieldsAre(At<void>(0x4e00), At<float>(0x5e00), MomentType::kFP16)));
  EXPECT_EQ(moved.weights, At<uint16_t>(0x6e00));
  const OptimizerState none = MovedBy(OptimizerState(), 512);
  EXPECT_EQ(none.master, nullptr);
  EXPECT_EQ(none.weights, nullptr);
  EXPECT_EQ(none.moments.begin()->data, nullptr);
  EXPECT_EQ(none.moments.begin()->scales, nullptr);
}

// Returns the state of 10 x 10 elements, with 40 bytes of padding behind the masters.
OptimizerState Small(int64_t index) {
  return {.master = At<float>(0x10000 + index * 448),
          .moments = {{{At<void>(0x1000000 + index * 448), nullptr, MomentType::kFP32},
                       {At<void>(0x2000000 + index * 256), nullptr, MomentType::kBF16}}}};
}

TEST(IdleStateTest, ManySmallParametersAreOneRangeForEachArray) {
  IdleState idle;
  for (int64_t i = 0; i < 10'000; ++i) idle.Add(Small(i), 10, 0, 10);
  EXPECT_THAT(idle.ranges(),
              ElementsAre(FieldsAre(Byte(0x10000), 9'999 * 448 + 400), FieldsAre(Byte(0x1000000), 9'999 * 448 + 400),
                          FieldsAre(Byte(0x2000000), 9'999 * 256 + 200)));
}

TEST(IdleStateTest, WhatTakesAStepIsNotCopied) {
  IdleState idle;
  idle.Add(Small(0), 10, 2, 8);
  idle.Add(Small(1), 10, 0, 10);
  idle.Cut();  // 2
  idle.Add(Small(3), 10, 0, 5);
  EXPECT_THAT(idle.ranges(),
              ElementsAre(FieldsAre(Byte(0x10000 + 80), 768), FieldsAre(Byte(0x1000000 + 80), 768),
                          FieldsAre(Byte(0x2000000 + 40), 416), FieldsAre(Byte(0x10000 + 3 * 448), 200),
                          FieldsAre(Byte(0x1000000 + 3 * 448), 200), FieldsAre(Byte(0x2000000 + 3 * 256), 100)));
}

TEST(IdleStateTest, ArraysThatDoNotFollowEachOtherAreNotJoined) {
  IdleState idle;
  const auto add = [&](int64_t address) { idle.Add({.master = At<float>(address)}, 16, 0, 2); };
  add(0x10000);
  add(0x10000 + 128 + kMoveUnit - 1);
  add(0x10000 + 128 + kMoveUnit - 1 + 128 + kMoveUnit);
  add(0x8000);  // before it
  EXPECT_THAT(idle.ranges(),
              ElementsAre(FieldsAre(Byte(0x10000), 256 + kMoveUnit - 1),
                          FieldsAre(Byte(0x10000 + 255 + 2 * kMoveUnit), 128), FieldsAre(Byte(0x8000), 128)));
}

TEST(IdleStateTest, WithoutRowsOrArraysThereIsNothing) {
  IdleState idle;
  idle.Add(Small(0), 10, 3, 0);
  idle.Add(OptimizerState(), 10, 0, 10);
  EXPECT_THAT(idle.ranges(), IsEmpty());
}

// Ranges hold every idle byte and no other byte.
TEST(IdleStateTest, RangesHoldWhatWasAddedInAnyOrderOfKinds) {
  const uint64_t first = FirstSeed(1);
  for (uint64_t seed = first; seed < first + 30; ++seed) {
    SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed));
    RandomFloats random(seed);
    std::vector<uint8_t> memory(1 << 18);
    std::vector<std::pair<int64_t, int64_t>> idle_bytes, stepped_bytes;
    IdleState idle;
    int64_t end = 0;
    while (end < (1 << 17)) {
      const int64_t rows = random.Integer(0, 20);
      const int64_t columns = random.Integer(1, 70);
      const bool is_idle = random.Integer(0, 2) != 0;
      // Some have no master.
      const bool has_master = random.Integer(0, 3) != 0;
      OptimizerState state;
      if (has_master) state.master = reinterpret_cast<float*>(memory.data() + end);
      if (is_idle) {
        idle.Add(state, columns, 0, rows);
      } else {
        idle.Cut();
      }
      if (!has_master) continue;
      (is_idle ? idle_bytes : stepped_bytes).emplace_back(end, end + rows * columns * 4);
      end = (end + rows * columns * 4 + 63) / 64 * 64;
    }
    for (const IdleState::Range& range : idle.ranges()) std::fill_n(range.begin, range.size_bytes, uint8_t{1});
    const auto all = [&](const std::pair<int64_t, int64_t>& bytes, uint8_t value) {
      return std::all_of(memory.begin() + bytes.first, memory.begin() + bytes.second,
                         [&](uint8_t byte) { return byte == value; });
    };
    for (const auto& bytes : idle_bytes) EXPECT_TRUE(all(bytes, 1)) << bytes.first;
    for (const auto& bytes : stepped_bytes) EXPECT_TRUE(all(bytes, 0)) << bytes.first;
  }
}

}  // namespace
}  // namespace paramshard
