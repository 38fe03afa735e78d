// Rules that hold for every layout, on random models.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/layout.h"
#include "common/model/layout_fingerprint.h"
#include "gtest/gtest.h"
#include "tests/common/model/gather_check.h"
#include "tests/common/model/random_model.h"
#include "tests/support/effort.h"

namespace paramshard {
namespace {

constexpr int kModels = 150;

class LayoutPropertyTest : public testing::Test {
 protected:
  // Calls `check(spec, layout)` for random models; failures name the seed.
  template <typename Check>
  void ForRandomModels(Check check) {
    for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Rounds(kModels)) && !HasFatalFailure(); ++seed) {
      RandomModel random(seed);
      ModelSpec spec = random.Spec();
      const int ranks = random.Ranks();
      if (seed % 2 == 0) random.OwnSome(spec);
      SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", ranks, " ranks"));
      check(spec, Layout(spec, ranks));
    }
  }
};

TEST_F(LayoutPropertyTest, ExtentsAreTorchChunksOrWholeMatricesAndArenasDoNotOverlap) {
  ForRandomModels([](const ModelSpec& spec, const Layout& layout) { GatherCheck(spec, layout).CheckArenas(); });
}

TEST_F(LayoutPropertyTest, GathersBringEveryByteOnceToWhereTheLayoutSays) {
  ForRandomModels([](const ModelSpec& spec, const Layout& layout) {
    const GatherCheck check(spec, layout);
    for (int unit = 0; unit < static_cast<int>(spec.units.size()); ++unit) {
      for (const Phase phase : kPhases) check.CheckGather(unit, phase);
      if (layout.ranks() == 1) check.CheckArenaAsView(unit);
    }
  });
}

TEST_F(LayoutPropertyTest, SlicesPartitionGradients) {
  ForRandomModels([](const ModelSpec& spec, const Layout& layout) {
    const GatherCheck check(spec, layout);
    for (int unit = 0; unit < static_cast<int>(spec.units.size()); ++unit) {
      check.CheckGradients(unit);
    }
  });
}

TEST_F(LayoutPropertyTest, EveryRankCountFrom1To64Gathers) {
  constexpr uint64_t kSeed = 1001;
  RandomModel random(kSeed);
  ModelSpec spec = random.Spec();
  random.OwnSome(spec);
  for (int ranks = 1; ranks <= 64 && !HasFatalFailure(); ranks += Stride()) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, ", ", ranks, " ranks"));
    const Layout layout(spec, ranks);
    const GatherCheck check(spec, layout);
    check.CheckArenas();
    for (const Phase phase : kPhases) check.CheckGather(0, phase);
  }
}

TEST_F(LayoutPropertyTest, TheOwnGradientsOfEveryRankFitTheirLandingPlaces) {
  ForRandomModels([](const ModelSpec& spec, const Layout& layout) {
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      std::vector<std::pair<int64_t, int64_t>> places;  // begin, end
      for (int unit = 0; unit < static_cast<int>(spec.units.size()); ++unit) {
        for (const GradientSlice& slice : layout.Slices(unit, rank)) {
          const GradientType type = spec.units[unit].parameters[slice.parameter].gradient_type;
          EXPECT_EQ(slice.landing_offset % kRegionAlignment, 0);
          places.emplace_back(slice.landing_offset, slice.landing_offset + slice.elements * GradientBytes(type));
        }
      }
      std::sort(places.begin(), places.end());
      int64_t end = 0;
      for (const auto& place : places) EXPECT_GE(place.first, std::exchange(end, place.second)) << "rank " << rank;
      EXPECT_GE(layout.landing_bytes(rank), end) << "rank " << rank;
    }
  });
}

TEST_F(LayoutPropertyTest, LandingPlacesOfWhatIsCutAreEqualOnAllRanks) {
  ForRandomModels([](const ModelSpec& spec, const Layout& layout) {
    for (int unit = 0; unit < static_cast<int>(spec.units.size()); ++unit) {
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        for (const GradientSlice& slice : layout.Slices(unit, rank)) {
          const ParameterLayout& parameter = layout.units()[unit].parameters[slice.parameter];
          if (parameter.owned.empty()) {
            EXPECT_EQ(slice.landing_offset, parameter.landing_offset);
          }
        }
      }
    }
  });
}

// Returns the number of ring slots with room for `bytes`, as a client computes it.
int64_t RingSlotsThatFit(const ModelSpec& spec, const Layout& layout, int64_t bytes) {
  return std::count_if(layout.slot_bytes().begin(), layout.slot_bytes().begin() + spec.gather_slots,
                       [&](int64_t slot) { return slot >= bytes; });
}

std::vector<int64_t> RingBytes(const ModelSpec& spec, const Layout& layout) {
  std::vector<int64_t> bytes;
  for (size_t i = 0; i < layout.units().size(); ++i) {
    const PerPhase<int64_t>& unit = layout.units()[i].slot_bytes;
    if (spec.units[i].reshard_after_forward) {
      bytes.push_back(std::max(unit[Phase::kForward], unit[Phase::kBackward]));
    }
  }
  return bytes;
}

TEST_F(LayoutPropertyTest, OrdinaryUnitsFitEverySlotOfTheRingAndLargeOnesTheLastOnes) {
  ForRandomModels([](const ModelSpec& spec, const Layout& layout) {
    std::vector<int64_t> bytes = RingBytes(spec, layout);
    std::sort(bytes.begin(), bytes.end());
    for (const int64_t unit : bytes) {
      const bool large = unit > 2 * bytes[(bytes.size() - 1) / 2];
      EXPECT_EQ(RingSlotsThatFit(spec, layout, unit), large ? spec.large_gather_slots : spec.gather_slots);
    }
    if (bytes.empty()) {
      EXPECT_EQ(layout.slot_bytes()[0], 0);
    }
  });
}

TEST_F(LayoutPropertyTest, ResidentUnitsHaveASlotOfTheirOwnAfterTheRing) {
  ForRandomModels([](const ModelSpec& spec, const Layout& layout) {
    int next = spec.gather_slots;
    for (size_t i = 0; i < layout.units().size(); ++i) {
      const UnitLayout& unit = layout.units()[i];
      EXPECT_EQ(unit.resident_slot.has_value(), !spec.units[i].reshard_after_forward);
      if (spec.units[i].reshard_after_forward) continue;
      ASSERT_EQ(unit.resident_slot, next);
      EXPECT_EQ(layout.slot_bytes()[next], unit.slot_bytes[Phase::kBoth]);
      ++next;
    }
    EXPECT_EQ(static_cast<int>(layout.slot_bytes().size()), next);
  });
}

TEST_F(LayoutPropertyTest, SlotsArePageAlignedAndDisjoint) {
  ForRandomModels([](const ModelSpec& spec, const Layout& layout) {
    ASSERT_EQ(static_cast<int>(layout.gradient_slot_bytes().size()), spec.gradient_slots);
    int64_t end = 0;
    const auto check = [&](const auto& offsets, const auto& bytes) {
      ASSERT_EQ(offsets.size(), bytes.size());
      for (size_t i = 0; i < offsets.size(); ++i) {
        EXPECT_EQ(offsets[i] % 4096, 0);
        EXPECT_GE(offsets[i], end);
        end = offsets[i] + bytes[i];
      }
    };
    if (layout.ranks() == 1) {
      EXPECT_EQ(layout.slot_offsets(), std::vector<int64_t>(layout.slot_bytes().size()))
          << "one rank reads its planes where they are";
    } else {
      check(layout.slot_offsets(), layout.slot_bytes());
    }
    check(layout.gradient_slot_offsets(), layout.gradient_slot_bytes());
    EXPECT_LE(end, layout.slots_bytes());
    for (const UnitLayout& unit : layout.units()) {
      EXPECT_GE(layout.gradient_slot_bytes().back(), unit.gradient_bytes);
    }
  });
}

TEST_F(LayoutPropertyTest, ImbalanceIsTheBusiestRankOverTheMean) {
  ForRandomModels([](const ModelSpec& spec, const Layout& layout) {
    std::vector<int64_t> bytes(layout.ranks(), 0);
    for (int unit = 0; unit < static_cast<int>(spec.units.size()); ++unit) {
      for (int parameter = 0; parameter < static_cast<int>(spec.units[unit].parameters.size()); ++parameter) {
        for (int rank = 0; rank < layout.ranks(); ++rank) {
          bytes[rank] += layout.PlaneBytes(unit, parameter, rank);
        }
      }
    }
    const double busiest = static_cast<double>(*std::max_element(bytes.begin(), bytes.end()));
    EXPECT_DOUBLE_EQ(layout.Imbalance(), busiest * layout.ranks() / std::accumulate(bytes.begin(), bytes.end(), 0.0));
    EXPECT_GE(layout.Imbalance(), 1);
  });
}

// Daemon and client trust each other's addresses if their fingerprints are equal.
TEST_F(LayoutPropertyTest, AnotherCutOrAnotherSpecHasAnotherFingerprint) {
  ForRandomModels([](const ModelSpec& spec, const Layout& layout) {
    EXPECT_NE(LayoutFingerprint(Layout(spec, layout.ranks() + 1)), LayoutFingerprint(layout));
    ModelSpec other = spec;
    other.units.back().parameters.back().name += "x";
    EXPECT_NE(LayoutFingerprint(Layout(other, layout.ranks())), LayoutFingerprint(layout));
  });
}

TEST_F(LayoutPropertyTest, SameSpecSameLayout) {
  ForRandomModels([](const ModelSpec& spec, const Layout& layout) {
    const ModelSpec copy = spec;
    EXPECT_EQ(LayoutFingerprint(Layout(copy, layout.ranks())), LayoutFingerprint(layout));
  });
}

}  // namespace
}  // namespace paramshard
