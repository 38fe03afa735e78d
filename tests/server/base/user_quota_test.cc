#include "server/base/user_quota.h"

#include <optional>

#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

constexpr uid_t kOwner = 1000;

// Takes places until there are no more.
int TakeAll(UserQuota& places, UserQuota::User user) {
  int taken = 0;
  while (places.Take(user)) ++taken;
  return taken;
}

TEST(UserQuotaTest, TheOwnerMayHaveAll) {
  UserQuota places(16, kOwner);
  EXPECT_EQ(TakeAll(places, kOwner), 16);
  EXPECT_FALSE(places.Take(7));
}

TEST(UserQuotaTest, AnotherUserHasHalfAndAllOthersThreeQuarters) {
  UserQuota places(16, kOwner);
  EXPECT_EQ(TakeAll(places, 7), 8);
  EXPECT_EQ(TakeAll(places, 8), 4);
  EXPECT_EQ(TakeAll(places, std::nullopt), 0);
  EXPECT_EQ(TakeAll(places, kOwner), 4);
}

TEST(UserQuotaTest, ThoseWhomTheKernelDoesNotNameAreOneUser) {
  UserQuota places(16, kOwner);
  EXPECT_EQ(TakeAll(places, std::nullopt), 8);
  EXPECT_EQ(TakeAll(places, 7), 4);
}

TEST(UserQuotaTest, OnePlaceIsForWhoeverComes) {
  UserQuota places(1, kOwner);
  EXPECT_EQ(TakeAll(places, 7), 1);
  EXPECT_FALSE(places.Take(kOwner));
  places.GiveBack(7);
  EXPECT_TRUE(places.Take(kOwner));
}

TEST(UserQuotaTest, SaysWhoseLeavingMakesRoom) {
  UserQuota places(16, kOwner);
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
