#include "common/model/slot_sizes.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard {
namespace {

using ::testing::ElementsAre;

TEST(SlotSizesTest, EqualUnitsGiveEqualSlots) { EXPECT_THAT(SlotSizes({50, 50, 50}, 3), ElementsAre(50, 50, 50)); }

TEST(SlotSizesTest, LargeUnitsShareTheLastSlot) {
  EXPECT_THAT(SlotSizes({500, 50, 60, 50, 40, 300}, 3), ElementsAre(60, 60, 500));
}

TEST(SlotSizesTest, ThereMayBeSeveralLargeSlots) {
  EXPECT_THAT(SlotSizes({500, 50, 60, 50, 40, 300}, 4, 2), ElementsAre(60, 60, 500, 500));
  EXPECT_THAT(SlotSizes({500, 50, 60}, 2, 2), ElementsAre(500, 500));
}

TEST(SlotSizesTest, TwiceTheMedianIsNotLarge) {
  EXPECT_THAT(SlotSizes({50, 100, 50}, 2), ElementsAre(100, 100));
  EXPECT_THAT(SlotSizes({50, 101, 50}, 2), ElementsAre(50, 101));
}

TEST(SlotSizesTest, TheLowerMedianOfTwoCounts) { EXPECT_THAT(SlotSizes({500, 50}, 2), ElementsAre(50, 500)); }

TEST(SlotSizesTest, OneSlotHoldsAll) { EXPECT_THAT(SlotSizes({500, 50, 50}, 1), ElementsAre(500)); }

TEST(SlotSizesTest, OneUnitIsNeverLarge) { EXPECT_THAT(SlotSizes({500}, 3), ElementsAre(500, 500, 500)); }

TEST(SlotSizesTest, NoUnitsNoBytes) { EXPECT_THAT(SlotSizes({}, 2), ElementsAre(0, 0)); }

}  // namespace
}  // namespace paramshard
