#include "server/base/user_places.h"

#include <optional>

#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

constexpr uid_t kOwner = 1000;

// Takes places until there are no more.
int TakeAll(UserPlaces& places, UserPlaces::User user) {
  int taken = 0;
  while (places.Take(user)) ++taken;
  return taken;
}

TEST(UserPlacesTest, TheOwnerMayHaveAll) {
  UserPlaces places(16, kOwner);
  EXPECT_EQ(TakeAll(places, kOwner), 16);
  EXPECT_FALSE(places.Take(7));
}

TEST(UserPlacesTest, AnotherUserHasHalfAndAllOthersThreeQuarters) {
  UserPlaces places(16, kOwner);
  EXPECT_EQ(TakeAll(places, 7), 8);
  EXPECT_EQ(TakeAll(places, 8), 4);
  EXPECT_EQ(TakeAll(places, std::nullopt), 0);
  EXPECT_EQ(TakeAll(places, kOwner), 4);
}

TEST(UserPlacesTest, ThoseWhomTheKernelDoesNotNameAreOneUser) {
  UserPlaces places(16, kOwner);
  EXPECT_EQ(TakeAll(places, std::nullopt), 8);
  EXPECT_EQ(TakeAll(places, 7), 4);
}

TEST(UserPlacesTest, OnePlaceIsForWhoeverComes) {
  UserPlaces places(1, kOwner);
  EXPECT_EQ(TakeAll(places, 7), 1);
  EXPECT_FALSE(places.Take(kOwner));
  places.GiveBack(7);
  EXPECT_TRUE(places.Take(kOwner));
}

TEST(UserPlacesTest, SaysWhoseLeavingMakesRoom) {
  UserPlaces places(16, kOwner);
  TakeAll(places, 7);
  ASSERT_TRUE(places.Take(8));
  EXPECT_TRUE(places.WouldFind(7, 7));
  EXPECT_FALSE(places.WouldFind(7, 8)) << "the user's own half is full";
  TakeAll(places, 8);
  EXPECT_TRUE(places.WouldFind(9, 8)) << "all others have three quarters";
  EXPECT_FALSE(places.WouldFind(7, 8));
  TakeAll(places, kOwner);
  EXPECT_TRUE(places.WouldFind(kOwner, 7));
  EXPECT_FALSE(places.Take(kOwner)) << "nothing was given back";
}

}  // namespace
}  // namespace paramshard::server
