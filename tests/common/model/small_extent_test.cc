#include "common/model/small_extent.h"

#include "gtest/gtest.h"

namespace paramshard {
namespace {

TEST(SmallExtentPackerTest, PiecesAreAlignedAndOwnersOverlayEachOther) {
  SmallExtentPacker packer(3);
  EXPECT_EQ(packer.AddToAll(PieceRun::kBothPhases, 5), 0);
  EXPECT_EQ(packer.AddToAll(PieceRun::kBothPhases, 16), 16);
  EXPECT_EQ(packer.AddToOwner(PieceRun::kBothPhases, 2, 300), 32);
  EXPECT_EQ(packer.AddToOwner(PieceRun::kBothPhases, 0, 4), 32);
  EXPECT_EQ(packer.AddToOwner(PieceRun::kBothPhases, 2, 1), 336);
  EXPECT_EQ(packer.RunBytes(PieceRun::kBothPhases), 512);
}

TEST(SmallExtentPackerTest, RunsFollowEachOtherAtMultiplesOf256) {
  SmallExtentPacker packer(2);
  packer.AddToAll(PieceRun::kForwardOnly, 257);
  packer.AddToOwner(PieceRun::kBackwardOnly, 1, 1);
  EXPECT_EQ(packer.RunBegin(PieceRun::kForwardOnly), 0);
  EXPECT_EQ(packer.RunBegin(PieceRun::kBothPhases), 512);
  EXPECT_EQ(packer.RunBegin(PieceRun::kBackwardOnly), 512);
  EXPECT_EQ(packer.RunBytes(PieceRun::kBackwardOnly), 256);
}

TEST(SmallExtentPackerTest, ClearForgetsEveryOwner) {
  SmallExtentPacker packer(2);
  packer.AddToOwner(PieceRun::kForwardOnly, 0, 100);
  packer.AddToOwner(PieceRun::kBackwardOnly, 1, 100);
  packer.Clear();
  EXPECT_EQ(packer.AddToAll(PieceRun::kForwardOnly, 1), 0);
  EXPECT_EQ(packer.AddToOwner(PieceRun::kForwardOnly, 0, 1), 16);
  EXPECT_EQ(packer.AddToOwner(PieceRun::kBackwardOnly, 1, 1), 0);
  EXPECT_EQ(packer.RunBytes(PieceRun::kForwardOnly), 256);
  EXPECT_EQ(packer.RunBytes(PieceRun::kBothPhases), 0);
}

}  // namespace
}  // namespace paramshard
