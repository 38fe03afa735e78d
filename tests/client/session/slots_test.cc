#include "client/internal/slots.h"

#include "gmock/gmock.h"

namespace paramshard::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::IsEmpty;
using ::testing::Optional;

TEST(GatherSlotsTest, TheLowestFreeSlotThatFitsIsChosen) {
  GatherSlots slots({100, 100, 400}, /*ring_slots=*/3);
  EXPECT_THAT(slots.FindFree(50), Optional(0));
  slots.Hold(0, /*unit=*/7);
  EXPECT_THAT(slots.FindFree(50), Optional(1));
  EXPECT_THAT(slots.FindFree(200), Optional(2));
  slots.Release(0);
  EXPECT_THAT(slots.FindFree(100), Optional(0));
}

TEST(GatherSlotsTest, SmallUnitsMayTakeTheLargeSlotButNotAhead) {
  GatherSlots slots({100, 100, 400}, 3);
  slots.Hold(0, 1);
  slots.Hold(1, 2);
  EXPECT_THAT(slots.FindFree(50), Optional(2));
  EXPECT_THAT(slots.FindFreeOfClass(50), Eq(std::nullopt));
  EXPECT_THAT(slots.FindFreeOfClass(300), Optional(2));
}

TEST(GatherSlotsTest, ResidentsSlotsAreNotOfTheRing) {
  GatherSlots slots({100, 900}, /*ring_slots=*/1);
  EXPECT_FALSE(slots.Fits(200));
  slots.Hold(0, 3);
  EXPECT_THAT(slots.FindFree(50), Eq(std::nullopt));
  slots.Hold(1, 5);
  EXPECT_THAT(slots.Holders(), ElementsAre(3, 5));
}

TEST(GradientSlotsTest, NeverPushedSlotsComeFirstThenTheOldestPush) {
  GradientSlots slots({100, 100});
  EXPECT_THAT(slots.FindOldest(10), Optional(0));
  slots.Hold(0, 1);
  slots.Push(0, 5);
  EXPECT_THAT(slots.FindOldest(10), Optional(1));
  slots.Hold(1, 2);
  slots.Push(1, 6);
  EXPECT_THAT(slots.FindOldest(10), Optional(0));
  EXPECT_EQ(slots.last_push(0), 5);
}

TEST(GradientSlotsTest, ASlotGivenBackKeepsItsAge) {
  GradientSlots slots({100, 100});
  slots.Hold(0, 1);
  slots.Push(0, 5);
  slots.Hold(1, 2);
  EXPECT_THAT(slots.Holders(), ElementsAre(2));
  slots.Release(1);
  EXPECT_THAT(slots.Holders(), IsEmpty());
  EXPECT_THAT(slots.FindOldest(10), Optional(1));
}

TEST(GradientSlotsTest, HeldSlotsAndSmallOnesAreNotOffered) {
  GradientSlots slots({100, 400});
  EXPECT_THAT(slots.FindOldest(200), Optional(1));
  slots.Hold(1, 1);
  EXPECT_THAT(slots.FindOldest(200), Eq(std::nullopt));
  EXPECT_THAT(slots.FindOldest(500), Eq(std::nullopt));
}

}  // namespace
}  // namespace paramshard::internal
