#include "kernels/optim/update_groups.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/random_seed.h"

namespace paramshard {
namespace {

using ::testing::ElementsAre;

TEST(UpdateGroupsTest, NeighboursAreTogetherAsLongAsTheyAreSmall) {
  const std::vector<MatrixShape> extents = {{128, 64}, {1, 64}, {128, 64}, {512, 64}, {64, 64}};
  const UpdateGroups updates = GroupUpdates(extents, {true, false, true, true, true}, {}, 16384);
  EXPECT_THAT(updates.groups, ElementsAre(ElementsAre(0, 2), ElementsAre(3), ElementsAre(4)));
  EXPECT_THAT(updates.offsets, ElementsAre(0, 0, 8192, 16384, 49152));
  EXPECT_EQ(updates.elements, 53248);
}

TEST(UpdateGroupsTest, WithoutUpdatesThereIsNoGroup) {
  EXPECT_TRUE(GroupUpdates(std::vector<MatrixShape>{{128, 64}}, {false}, {}).groups.empty());
}

// The matrices of the blocks of a model, between extents without an update.
TEST(UpdateGroupsTest, TwoLayersAreInMemoryAtATime) {
  std::vector<MatrixShape> extents = {{32768, 2048}};
  std::vector<bool> has_update = {false};
  for (int layer = 0; layer < 16; ++layer) {
    for (const MatrixShape& shape : std::vector<MatrixShape>{
             {2048, 2048}, {1024, 2048}, {1024, 2048}, {2048, 2048}, {8192, 2048}, {8192, 2048}, {2048, 8192}}) {
      extents.push_back(shape);
      has_update.push_back(true);
    }
  }
  const UpdateGroups updates =
      GroupUpdates(extents, has_update, CutIntoBands(extents, BandRule().BandElements(extents)));
  EXPECT_GE(updates.groups.size(), 15u);
  EXPECT_LE(updates.elements, 2 * kMostGroupElements);
}

// The steps of bands in either order, and who needs which memory meanwhile.
TEST(UpdateGroupsTest, NoGroupTakesTheMemoryOfAnotherThatIsStillNeeded) {
  const uint64_t seed = FirstSeed(91);
  SCOPED_TRACE(seed);
  RandomFloats random(seed);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<MatrixShape> extents;
    std::vector<bool> has_update;
    const int64_t count = random.Integer(1, 12);
    for (int64_t i = 0; i < count; ++i) {
      extents.push_back({128 * random.Integer(1, 6), 64 * random.Integer(1, 3)});
      has_update.push_back(random.Integer(0, 3) > 0);
    }
    const std::vector<BandStart> bands = CutIntoBands(extents, 8192 * random.Integer(1, 12));
    const UpdateGroups updates = GroupUpdates(extents, has_update, bands, 8192 * random.Integer(1, 20));
    for (const bool forward : {false, true}) {
      std::vector<int64_t> owner(updates.elements, -1);  // the group that made its updates last
      std::vector<bool> is_made(updates.groups.size(), false);
      for (int n = 0; n < static_cast<int>(bands.size()); ++n) {
        const int band = BandAt(n, static_cast<int>(bands.size()), forward);
        std::vector<size_t> needed;
        for (size_t g = 0; g < updates.groups.size(); ++g) {
          const std::vector<size_t>& group = updates.groups[g];
          if (std::none_of(group.begin(), group.end(), [&](size_t extent) {
                return RowsInBand(bands, band, static_cast<int64_t>(extent), extents[extent].rows).count > 0;
              })) {
            continue;
          }
          needed.push_back(g);
          if (is_made[g]) continue;
          is_made[g] = true;
          for (const size_t extent : group) {
            const auto begin = owner.begin() + updates.offsets[extent];
            std::fill(begin, begin + extents[extent].rows * extents[extent].cols, static_cast<int64_t>(g));
          }
        }
        for (const size_t g : needed) {
          for (const size_t extent : updates.groups[g]) {
            const auto begin = owner.begin() + updates.offsets[extent];
            ASSERT_TRUE(std::all_of(begin, begin + extents[extent].rows * extents[extent].cols,
                                    [&](int64_t is) { return is == static_cast<int64_t>(g); }))
                << "trial " << trial << " band " << band << " group " << g;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace paramshard
