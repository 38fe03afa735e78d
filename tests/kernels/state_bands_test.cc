#include "kernels/optim/state_bands.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/effort.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using testing::ElementsAre;
using testing::FieldsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class Random {
 public:
  explicit Random(uint64_t seed) : generator_(seed) {}
  int64_t Integer(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator_); }
  bool Coin() { return Integer(0, 1) == 1; }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return *(values.begin() + Integer(0, static_cast<int64_t>(values.size()) - 1));
  }

 private:
  std::mt19937_64 generator_;
};

// Extents, their bands, and bytes that steps move and change. A step's result for a byte depends only on the byte and
// on its place in the array, and always differs from the byte.
class MovedBytes {
 public:
  MovedBytes(std::vector<MatrixShape> extents, int64_t band_elements, int array_count, Random& random)
      : extents_(std::move(extents)), bands_(CutIntoBands(extents_, band_elements)) {
    for (int i = 0; i < array_count; ++i) arrays_.push_back(AnyArray(random));
    distance_ = MoveDistance(extents_, bands_, arrays_);
    for (const BandedArray& array : arrays_) {
      expected_.emplace_back(SizeOf(array));
      for (uint8_t& byte : expected_.back()) byte = static_cast<uint8_t>(random.Integer(0, 255));
      bytes_.push_back(expected_.back());
      bytes_.back().resize(bytes_.back().size() + distance_, 0xee);
    }
  }

  int band_count() const { return static_cast<int>(bands_.size()); }
  bool forward() const { return position_ == 0; }

  // Steps the n-th band in order: all its bytes, or each with probability 1/2 like a step that is killed.
  void StepBand(int n, bool whole, Random& random) {
    const int band = BandAt(n, band_count(), forward());
    const int64_t target = forward() ? distance_ : -distance_;
    for (size_t i = 0; i < arrays_.size(); ++i) {
      for (int64_t byte = BeginOf(band, arrays_[i]); byte < BeginOf(band + 1, arrays_[i]); ++byte) {
        if (whole || random.Coin()) bytes_[i][position_ + byte + target] = Stepped(bytes_[i][position_ + byte], byte);
      }
    }
  }

  void EndStep() {
    position_ = forward() ? distance_ : 0;
    for (std::vector<uint8_t>& bytes : expected_) {
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = Stepped(bytes[i], static_cast<int64_t>(i));
    }
  }

  void Check() const {
    for (size_t i = 0; i < arrays_.size(); ++i) {
      const auto begin = bytes_[i].begin() + position_;
      ASSERT_EQ(expected_[i], std::vector<uint8_t>(begin, begin + static_cast<int64_t>(expected_[i].size())))
          << "array " << i;
    }
  }

 private:
  static uint8_t Stepped(uint8_t byte, int64_t place) { return static_cast<uint8_t>(byte + 1 + place % 251); }

  BandedArray AnyArray(Random& random) const {
    BandedArray array;
    int64_t offset = 0;
    for (const MatrixShape& extent : extents_) {
      const bool has = random.Integer(0, 3) != 0;
      array.parts.push_back({offset, has ? extent.cols * random.Integer(1, 4) : 0});
      // Extents begin at aligned addresses.
      offset = (offset + extent.rows * array.parts.back().row_bytes + 255) / 256 * 256;
    }
    return array;
  }

  int64_t SizeOf(const BandedArray& array) const { return BeginOf(band_count(), array); }

  // Behind the last band the end.
  int64_t BeginOf(int band, const BandedArray& array) const {
    if (band < band_count()) {
      const BandedArray::Part& part = array.parts[bands_[band].extent];
      return part.offset + bands_[band].row * part.row_bytes;
    }
    return array.parts.back().offset + extents_.back().rows * array.parts.back().row_bytes;
  }

  std::vector<MatrixShape> extents_;
  std::vector<BandStart> bands_;
  std::vector<BandedArray> arrays_;
  int64_t distance_ = 0;
  int64_t position_ = 0;
  std::vector<std::vector<uint8_t>> bytes_;
  std::vector<std::vector<uint8_t>> expected_;
};

// Lets the lanes take random turns until both have finished, or for `most_bands` bands. Then each lane may be in the
// middle of its next band.
void RunLanes(MovedBytes& state, int64_t most_bands, std::array<int, kBandLanes>& done, Random& random) {
  const auto next = [&](int lane) { return done[lane] * kBandLanes + lane; };
  // A band waits for all before it but the last one.
  const auto may_begin = [&](int lane) { return next(lane) < state.band_count() && next(1 - lane) >= next(lane) - 1; };
  for (; most_bands > 0 && (may_begin(0) || may_begin(1)); --most_bands) {
    int lane = static_cast<int>(random.Integer(0, 1));
    if (!may_begin(lane)) lane = 1 - lane;
    state.StepBand(next(lane), /*whole=*/true, random);
    ++done[lane];
  }
  for (int lane = 0; lane < kBandLanes; ++lane) {
    if (may_begin(lane) && random.Coin()) state.StepBand(next(lane), /*whole=*/false, random);
  }
}

TEST(StateBandsTest, AStepThatIsCutOffAnywhereIsFinishedFromWhatItRead) {
  const uint64_t first = FirstSeed(1);
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(Rounds(60)); ++seed) {
    SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed));
    Random random(seed);
    std::vector<MatrixShape> extents;
    for (int64_t count = random.Integer(1, 8); count > 0; --count) {
      extents.push_back(
          {random.OneOf<int64_t>({0, 1, 100, 128, 300, 700}), random.OneOf<int64_t>({1, 3, 64, 100, 192})});
    }
    MovedBytes state(extents, random.OneOf<int64_t>({1, 20'000, 60'000}), static_cast<int>(random.Integer(1, 4)),
                     random);
    for (int step = 0; step < 5; ++step) {
      std::array<int, kBandLanes> done = {};
      for (int64_t cuts = random.Integer(0, 3); cuts > 0; --cuts) {
        RunLanes(state, random.Integer(0, state.band_count()), done, random);
      }
      RunLanes(state, state.band_count(), done, random);
      state.EndStep();
      ASSERT_NO_FATAL_FAILURE(state.Check()) << "step " << step;
    }
  }
}

TEST(StateBandsTest, BandsBeginWithWholeTiles) {
  EXPECT_EQ(BandRows(4096), 128);
  EXPECT_EQ(BandRows(64), 128);
  EXPECT_EQ(BandRows(32), 256);
  EXPECT_EQ(BandRows(1), 8192);
  EXPECT_EQ(BandRows(4099), 8192);
  EXPECT_EQ(BandRows(100), 2048);
}

TEST(StateBandsTest, ExtentsAreCutWhereABandHasEnough) {
  const std::vector<MatrixShape> extents = {{0, 64}, {300, 64}, {1, 50'000}, {0, 7}, {128, 64}};
  EXPECT_THAT(CutIntoBands(extents, 10'000), ElementsAre(FieldsAre(0, 0), FieldsAre(1, 256), FieldsAre(4, 0)));
  EXPECT_THAT(CutIntoBands(extents, 1),
              ElementsAre(FieldsAre(0, 0), FieldsAre(1, 128), FieldsAre(1, 256), FieldsAre(2, 0), FieldsAre(4, 0)));
  EXPECT_THAT(CutIntoBands(extents, 1'000'000), ElementsAre(FieldsAre(0, 0)));
  EXPECT_THAT(CutIntoBands({}, 1), IsEmpty());
  EXPECT_THAT(CutIntoBands({{0, 5}}, 1), IsEmpty());
}

// Granule by granule, until a band has enough.
std::vector<BandStart> CutSlowly(const std::vector<MatrixShape>& extents, int64_t band_elements) {
  std::vector<BandStart> bands;
  int64_t elements = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    for (int64_t row = 0; extents[i].cols > 0 && row < extents[i].rows; row += BandRows(extents[i].cols)) {
      if (bands.empty()) {
        bands.push_back({0, 0});
      } else if (elements >= band_elements) {
        bands.push_back({static_cast<int64_t>(i), row});
        elements = 0;
      }
      elements += std::min(BandRows(extents[i].cols), extents[i].rows - row) * extents[i].cols;
    }
  }
  return bands;
}

TEST(StateBandsTest, BandsAreThoseOfACutGranuleByGranule) {
  const uint64_t first = FirstSeed(1);
  for (uint64_t seed = first; seed < first + 200; ++seed) {
    SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed));
    Random random(seed);
    std::vector<MatrixShape> extents;
    for (int64_t count = random.Integer(0, 6); count > 0; --count) {
      extents.push_back({random.Integer(0, 20'000), random.OneOf<int64_t>({0, 1, 3, 64, 100, 4096})});
    }
    const int64_t band_elements = random.Integer(1, 300'000);
    const std::vector<BandStart> bands = CutIntoBands(extents, band_elements);
    const std::vector<BandStart> slowly = CutSlowly(extents, band_elements);
    ASSERT_EQ(bands.size(), slowly.size());
    for (size_t i = 0; i < bands.size(); ++i) {
      EXPECT_EQ(bands[i].extent, slowly[i].extent) << i;
      EXPECT_EQ(bands[i].row, slowly[i].row) << i;
    }
    EXPECT_OK(CheckBands(extents, bands));
  }
}

TEST(StateBandsTest, ARuleCutsTheLargestStateIntoFewBands) {
  const std::vector<MatrixShape> extents = {{int64_t{1} << 40, 1}, {int64_t{1} << 20, int64_t{1} << 20}};
  const BandRule rule;
  EXPECT_THAT(CutIntoBands(extents, rule.BandElements(extents)), SizeIs(256));
  EXPECT_EQ(rule.BandElements({{100, 100}}), int64_t{4} << 20);
}

TEST(StateBandsTest, BandsThatNoCutGivesAreRefused) {
  const std::vector<MatrixShape> extents = {{300, 64}, {0, 64}, {100, 32}};
  for (const std::vector<BandStart>& bands : std::vector<std::vector<BandStart>>{{{0, 1}},
                                                                                 {{0, 128}},
                                                                                 {{1, 0}},
                                                                                 {{-1, 0}},
                                                                                 {{0, 0}, {0, 0}},
                                                                                 {{0, 0}, {0, 64}},
                                                                                 {{0, 0}, {0, 384}},
                                                                                 {{0, 0}, {0, 256}, {0, 128}},
                                                                                 {{0, 0}, {2, 256}},
                                                                                 {{0, 0}, {2, -256}},
                                                                                 {{0, 0}, {3, 0}}}) {
    EXPECT_THAT(CheckBands(extents, bands), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("whole tiles")));
  }
  EXPECT_OK(CheckBands(extents, {}));
  EXPECT_OK(CheckBands(extents, {{0, 0}, {0, 128}, {0, 256}, {2, 0}}));
}

TEST(StateBandsDeathTest, ADistanceOfBandsThatNoneCanBeIsOurBug) {
  EXPECT_DEATH(MoveDistance({{300, 64}}, {{0, 64}}, {}), "check failed");
  EXPECT_DEATH(MoveDistance({{300, 64}}, {{0, 0}}, {BandedArray()}), "check failed");
}

TEST(StateBandsTest, TheRoomIsThatOfTheTwoLongestNeighbours) {
  const std::vector<MatrixShape> extents = {{128, 64}, {256, 64}, {128, 64}};
  const std::vector<BandStart> bands = CutIntoBands(extents, 1);
  ASSERT_EQ(bands.size(), 4u);
  const BandedArray floats = {{{0, 256}, {32'768, 256}, {98'304, 256}}};
  EXPECT_EQ(MoveDistance(extents, bands, {floats}), 65'536);
  // A gap between extents is a part of the way.
  const BandedArray with_gap = {{{0, 256}, {40'000, 256}, {105'536, 256}}};
  EXPECT_EQ(MoveDistance(extents, bands, {floats, with_gap}), 73'216);
  EXPECT_EQ(MoveDistance(extents, {{0, 0}}, {floats}), 131'072);
  EXPECT_EQ(MoveDistance({}, {}, {}), 0);
  EXPECT_EQ(MoveDistance(extents, {}, {BandedArray()}), 0);
}

}  // namespace
}  // namespace paramshard
