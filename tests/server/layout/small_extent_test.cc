#include "server/layout/small_extent.h"

#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

TEST(SmallExtentPackerTest, PiecesAreAlignedAndOwnersOverlayEachOther) {
  SmallExtentPacker packer(3);
  EXPECT_EQ(packer.AddToAll(Run::kBothPhases, 5), 0);
  EXPECT_EQ(packer.AddToAll(Run::kBothPhases, 16), 16);
  EXPECT_EQ(packer.AddToOwner(Run::kBothPhases, 2, 300), 32);
  EXPECT_EQ(packer.AddToOwner(Run::kBothPhases, 0, 4), 32);
  EXPECT_EQ(packer.AddToOwner(Run::kBothPhases, 2, 1), 336);
  EXPECT_EQ(packer.RunBytes(Run::kBothPhases), 512);
}

TEST(SmallExtentPackerTest, RunsFollowEachOtherAtMultiplesOf256) {
  SmallExtentPacker packer(2);
  packer.AddToAll(Run::kForwardOnly, 257);
  packer.AddToOwner(Run::kBackwardOnly, 1, 1);
  EXPECT_EQ(packer.RunBegin(Run::kForwardOnly), 0);
  EXPECT_EQ(packer.RunBegin(Run::kBothPhases), 512);
  EXPECT_EQ(packer.RunBegin(Run::kBackwardOnly), 512);
  EXPECT_EQ(packer.RunBytes(Run::kBackwardOnly), 256);
}

TEST(SmallExtentPackerTest, ClearForgetsEveryOwner) {
  SmallExtentPacker packer(2);
  packer.AddToOwner(Run::kForwardOnly, 0, 100);
  packer.AddToOwner(Run::kBackwardOnly, 1, 100);
  packer.Clear();
  EXPECT_EQ(packer.AddToAll(Run::kForwardOnly, 1), 0);
  EXPECT_EQ(packer.AddToOwner(Run::kForwardOnly, 0, 1), 16);
  EXPECT_EQ(packer.AddToOwner(Run::kBackwardOnly, 1, 1), 0);
  EXPECT_EQ(packer.RunBytes(Run::kForwardOnly), 256);
  EXPECT_EQ(packer.RunBytes(Run::kBothPhases), 0);
}

}  // namespace
}  // namespace paramshard::server
