#include "common/model/owner_choice.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/model/layout.h"
#include "common/model/layout_fingerprint.h"
#include "common/model/owned_matrices.h"
#include "common/model/rank_loads.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/model/random_model.h"
#include "tests/support/effort.h"

namespace paramshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

ParameterSpec Owned(std::string name, std::vector<int64_t> shape, Format format = Format::kBF16) {
  ParameterSpec spec = MakeParameter(std::move(name), std::move(shape), format);
  spec.placement = Placement::kOwned;
  return spec;
}

// Blocks as Llama has them, with owned matrices and cut vectors.
ModelSpec Llama(int blocks, int64_t hidden, int64_t intermediate, int64_t key_value) {
  ModelSpec spec;
  spec.name = "llama";
  for (int i = 0; i < blocks; ++i) {
    const std::string name = absl::StrCat("block", i);
    spec.units.push_back(
        {.name = name,
         .parameters = {Owned(name + ".q", {hidden, hidden}), Owned(name + ".k", {key_value, hidden}),
                        Owned(name + ".v", {key_value, hidden}), Owned(name + ".o", {hidden, hidden}),
                        Owned(name + ".gate", {intermediate, hidden}), Owned(name + ".up", {intermediate, hidden}),
                        Owned(name + ".down", {hidden, intermediate}),
                        MakeParameter(name + ".norm", {hidden}, Format::kFP32)}});
  }
  return spec;
}

// Loads of ranks over their means. Counted from the layout's extents alone.
struct Loads {
  Loads(const ModelSpec& spec, const Layout& layout) : work(layout.ranks(), 0), bytes(layout.ranks(), 0) {
    for (int unit = 0; unit < static_cast<int>(spec.units.size()); ++unit) {
      for (int i = 0; i < static_cast<int>(spec.units[unit].parameters.size()); ++i) {
        const ParameterSpec& parameter = spec.units[unit].parameters[i];
        for (int rank = 0; rank < layout.ranks(); ++rank) {
          bytes[rank] += static_cast<double>(layout.PlaneBytes(unit, i, rank));
          if (parameter.placement == Placement::kOwned) {
            work[rank] += WorkOf(parameter, layout.Extent(unit, i, rank).size());
          }
        }
      }
    }
  }

  // In floating point, and matrix by matrix.
  static double WorkOf(const ParameterSpec& spec, int64_t rows) {
    const size_t dimensions = spec.shape.size();
    const double a = static_cast<double>(dimensions > 2 ? spec.shape[dimensions - 2] : spec.rows());
    const double b = static_cast<double>(spec.columns());
    const double s = std::min(a, b);
    return spec.trainable ? static_cast<double>(rows) / a * (2 * s * s * std::max(a, b) + s * s * s) : 0;
  }

  static double OverMean(const std::vector<double>& loads) {
    const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
    return mean == 0 ? 1 : *std::max_element(loads.begin(), loads.end()) / mean;
  }
  double busiest() const { return std::max(OverMean(work), OverMean(bytes)); }

  std::vector<double> work, bytes;
};

TEST(OwnerChoiceTest, BlocksOfLlamaAreEvenOnEveryNumberOfRanks) {
  for (const ModelSpec& spec :
       {Llama(24, 2048, 5632, 512), Llama(24, 2048, 5504, 2048), Llama(32, 4096, 14336, 1024)}) {
    for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
      const Loads loads(spec, Layout(spec, ranks));
      EXPECT_LE(Loads::OverMean(loads.work), 1.1) << ranks << " ranks";
      EXPECT_LE(Loads::OverMean(loads.bytes), 1.1) << ranks << " ranks";
    }
  }
}

// All ranks take part in the gather of each unit.
TEST(OwnerChoiceTest, FourRanksShareEachBlockOfLlama) {
  const ModelSpec spec = Llama(24, 2048, 5632, 512);
  const Layout layout(spec, 4);
  for (int unit = 0; unit < 24; ++unit) {
    std::vector<double> bytes(4, 0);
    for (int rank = 0; rank < 4; ++rank) {
      for (const PieceCopy& piece : layout.Pieces(unit, Phase::kForward, rank)) {
        bytes[rank] += static_cast<double>(piece.bytes);
      }
    }
    EXPECT_LE(Loads::OverMean(bytes), 1.05) << "unit " << unit;
  }
}

// Returns a bound that no choice can beat: of the m ranks + 1 largest items one rank has m + 1.
double LowerBound(std::vector<double> items, int ranks) {
  const double total = std::accumulate(items.begin(), items.end(), 0.0);
  std::sort(items.begin(), items.end(), std::greater<>());
  double bound = 1;
  for (size_t last = 0; last < items.size(); last += ranks) {
    const size_t count = last / ranks + 1;
    const double sum = std::accumulate(items.begin() + static_cast<int64_t>(last + 1 - count),
                                       items.begin() + static_cast<int64_t>(last + 1), 0.0);
    bound = std::max(bound, sum * ranks / total);
  }
  return bound;
}

struct RandomItems {
  explicit RandomItems(uint64_t seed) : random(seed) {
    ranks = static_cast<int>(random.Integer(2, 8));
    constexpr int64_t kSides[] = {256, 512, 768, 1024, 1536, 2048, 4096, 8192, 11008};
    std::vector<std::pair<int64_t, int64_t>> shapes;
    for (int64_t i = random.Integer(2, 10); i > 0; --i) {
      shapes.emplace_back(kSides[random.Integer(0, 8)], kSides[random.Integer(0, 8)]);
    }
    const bool alike = random.OneIn(2);
    const auto units = static_cast<int>(random.Integer(3, 60));
    for (int unit = 0; unit < units; ++unit) {
      for (auto [rows, columns] : shapes) {
        if (!alike) rows = kSides[random.Integer(0, 8)];
        const auto [s, l] = std::minmax(rows, columns);
        items.push_back({.unit = unit, .work = 2 * s * s * l + s * s * s, .bytes = 2 * rows * columns});
      }
    }
  }

  RandomModel random;
  int ranks = 0;
  std::vector<OwnedItem> items;
};

// Work and bytes of each rank over their means, whichever is larger.
double BusiestOf(absl::Span<const OwnedItem> items, absl::Span<const int> owners, int ranks) {
  std::vector<double> work(ranks, 0), bytes(ranks, 0);
  for (size_t i = 0; i < items.size(); ++i) {
    work[owners[i]] += static_cast<double>(items[i].work);
    bytes[owners[i]] += static_cast<double>(items[i].bytes);
  }
  return std::max(Loads::OverMean(work), Loads::OverMean(bytes));
}

int64_t TotalBytes(absl::Span<const OwnedItem> items) {
  return std::accumulate(items.begin(), items.end(), int64_t{0},
                         [](int64_t sum, const OwnedItem& item) { return sum + item.bytes; });
}

// A matrix that is a large part of a rank's share may leave no even choice, in work and in bytes at once.
TEST(OwnerChoiceTest, TheBusiestRankHasATenthMoreThanTheMeanAtMostWhereSizesAllowIt) {
  int fine = 0, coarse = 0, uneven = 0;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Rounds(300)); ++seed) {
    const RandomItems random(seed);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", random.ranks, " ranks"));
    std::vector<double> work, bytes;
    for (const OwnedItem& item : random.items) {
      work.push_back(static_cast<double>(item.work));
      bytes.push_back(static_cast<double>(item.bytes));
    }
    const int64_t total = TotalBytes(random.items);
    const std::vector<int64_t> none(random.ranks, 0);
    const std::vector<int> owners = ChooseOwners(random.items, none, total);
    EXPECT_EQ(ChooseOwners(random.items, none, total), owners) << "another choice for the same items";
    const double busiest = BusiestOf(random.items, owners, random.ranks);
    const auto largest = [&](const std::vector<double>& sizes) {
      return *std::max_element(sizes.begin(), sizes.end()) * random.ranks /
             std::accumulate(sizes.begin(), sizes.end(), 0.0);
    };
    if (std::max(largest(work), largest(bytes)) <= 0.1) {
      ++fine;
      EXPECT_LE(busiest, 1.1);
      continue;
    }
    const double bound = std::max(LowerBound(work, random.ranks), LowerBound(bytes, random.ranks));
    EXPECT_LE(busiest, 1.25 * bound);
    ++coarse;
    if (busiest > 1.1 * bound) ++uneven;
  }
  EXPECT_GT(fine, coarse / 20);
  EXPECT_LE(uneven, coarse / 20 + 1);
}

// Counts all choices of a few items.
double BestOfAll(absl::Span<const OwnedItem> items, int ranks) {
  std::vector<int> owners(items.size(), 0);
  double best = BusiestOf(items, owners, ranks);
  while (true) {
    size_t i = 0;
    while (i < owners.size() && ++owners[i] == ranks) owners[i++] = 0;
    if (i == owners.size()) return best;
    best = std::min(best, BusiestOf(items, owners, ranks));
  }
}

TEST(OwnerChoiceTest, FewMatricesAreNearTheBestOfAllChoices) {
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Rounds(60)); ++seed) {
    RandomItems random(seed);
    const int ranks = 2 + static_cast<int>(seed % 2);
    random.items.resize(std::min<size_t>(random.items.size(), 8));
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", ranks, " ranks"));
    const std::vector<int> owners =
        ChooseOwners(random.items, std::vector<int64_t>(ranks, 0), TotalBytes(random.items));
    EXPECT_LE(BusiestOf(random.items, owners, ranks), 1.34 * BestOfAll(random.items, ranks));
  }
}

TEST(OwnerChoiceTest, WhatARankHoldsAlreadyCounts) {
  const std::vector<OwnedItem> items(3, {.unit = 0, .parameter = 0, .work = 0, .bytes = 100});
  EXPECT_THAT(ChooseOwners(items, {300, 0}, 600), ElementsAre(1, 1, 1));
  EXPECT_THAT(ChooseOwners({}, {1, 2}, 3), IsEmpty());
}

// Sums of work and bytes that 64 bits cannot hold.
TEST(OwnerChoiceTest, TheLargestMatricesDoNotOverflow) {
  const ParameterSpec largest = Owned("w", {1 << 20, (1 << 20) - 1});
  const int64_t work = WorkOfRows(largest, largest.rows());
  EXPECT_GT(work, int64_t{3} << 58);
  const std::vector<OwnedItem> items(8, {.unit = 0, .parameter = 0, .work = work, .bytes = int64_t{1} << 41});
  EXPECT_THAT(ChooseOwners(items, {0, 0, 0, 0}, int64_t{1} << 44), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
}

TEST(OwnedMatricesTest, TheLastTwoDimensionsAreAMatrix) {
  EXPECT_EQ(OwnedMatrices(Owned("w", {6, 4})).count, 1);
  EXPECT_EQ(OwnedMatrices(Owned("w", {7})).count, 1);
  EXPECT_EQ(OwnedMatrices(Owned("w", {})).rows, 1);
  const MatrixStack stack = OwnedMatrices(Owned("w", {2, 3, 5, 7}));
  EXPECT_EQ(stack.count, 6);
  EXPECT_EQ(stack.rows, 5);
  EXPECT_EQ(stack.columns, 7);
  // 6 matrices of 2 * 5 * 5 * 7 + 5 * 5 * 5.
  EXPECT_EQ(WorkOfRows(Owned("w", {2, 3, 5, 7}), 30), 6 * 475);
  ParameterSpec frozen = Owned("w", {5, 7});
  frozen.trainable = false;
  EXPECT_EQ(WorkOfRows(frozen, 5), 0);
}

TEST(OwnedMatricesTest, MatricesThatShareABlockOfScalesHaveOneOwner) {
  EXPECT_EQ(RowsOfOneOwner(Owned("w", {8, 48, 32}, Format::kMXFP8)), 96);
  EXPECT_EQ(RowsOfOneOwner(Owned("w", {8, 64, 32}, Format::kMXFP8)), 64);
  EXPECT_EQ(RowsOfOneOwner(Owned("w", {3, 100, 32}, Format::kFP8Block128x128)), 300);
  EXPECT_EQ(RowsOfOneOwner(Owned("w", {100, 32}, Format::kFP8Block128x128)), 100);
  EXPECT_EQ(RowsOfOneOwner(Owned("w", {8, 3, 32})), 3);
}

TEST(OwnedMatricesTest, TheExpertsOfAStackAreSpreadOverAllRanks) {
  ModelSpec spec;
  spec.name = "experts";
  spec.small_parameter_bytes = 0;
  spec.units = {{.name = "u", .parameters = {Owned("up", {8, 64, 32}, Format::kMXFP8), Owned("down", {5, 32, 64})}}};
  const Layout layout(spec, 4);
  const ParameterLayout& up = layout.units()[0].parameters[0];
  ASSERT_THAT(up.owned, SizeIs(4));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(up.owned[rank].rank, rank);
    EXPECT_EQ(layout.Extent(0, 0, rank).begin, 128 * rank);
    EXPECT_EQ(layout.Extent(0, 0, rank).size(), 128);
    EXPECT_EQ(layout.Extent(0, 1, rank).size() % 32, 0);
  }
}

// Arenas and landing areas have room for what a rank owns, and not for what others do.
TEST(OwnedMatricesTest, ArenasDifferByRank) {
  ModelSpec spec;
  spec.name = "uneven";
  spec.small_parameter_bytes = 0;
  spec.units = {
      {.name = "u", .parameters = {Owned("large", {64, 64}, Format::kFP32), Owned("small", {64, 16}, Format::kFP32)}}};
  const Layout layout(spec, 3);
  EXPECT_EQ(layout.arena_bytes(0), 64 * 64 * 4);
  EXPECT_EQ(layout.arena_bytes(1), 64 * 16 * 4);
  EXPECT_EQ(layout.arena_bytes(2), 256) << "memory that is shared is not empty";
  EXPECT_EQ(layout.landing_bytes(0), 64 * 64 * 4);
  EXPECT_EQ(layout.landing_bytes(1), 64 * 16 * 4);
  EXPECT_EQ(layout.landing_bytes(2), 0);
  EXPECT_EQ(layout.units()[0].slot_bytes[Phase::kForward], 64 * 80 * 4);
  EXPECT_THAT(layout.Pieces(0, Phase::kForward, 0), SizeIs(1));
  EXPECT_THAT(layout.Pieces(0, Phase::kForward, 2), IsEmpty());
  EXPECT_THAT(layout.Slices(0, 2), IsEmpty());
}

// A matrix below small_parameter_bytes lies in the small extent, and its owner is chosen with the others.
TEST(OwnedMatricesTest, SmallMatricesHaveBalancedOwnersToo) {
  ModelSpec spec;
  spec.name = "small";
  spec.units = {{.name = "u"}};
  for (int i = 0; i < 12; ++i) spec.units[0].parameters.push_back(Owned(absl::StrCat("w", i), {32, i < 4 ? 64 : 32}));
  const Layout layout(spec, 4);
  EXPECT_LE(Loads(spec, layout).busiest(), 1.1);
  for (const ParameterLayout& parameter : layout.units()[0].parameters) {
    EXPECT_TRUE(parameter.owner.has_value());
    EXPECT_THAT(parameter.owned, IsEmpty());
  }
}

TEST(OwnedMatricesTest, PlacementIsPartOfTheFingerprint) {
  ModelSpec spec = Llama(1, 512, 1024, 512);
  const uint64_t owned = LayoutFingerprint(Layout(spec, 2));
  spec.units[0].parameters[0].placement = Placement::kCut;
  EXPECT_NE(LayoutFingerprint(Layout(spec, 2)), owned);
}

}  // namespace
}  // namespace paramshard
