#include "server/data_plane/topology.h"

#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Topology> Create(std::vector<int> device_counts, int node, std::optional<int> shard_size = {},
                                bool mesh_inside = false) {
  return Topology::Create({.device_counts = std::move(device_counts), .node = node, .mesh_inside = mesh_inside},
                          shard_size);
}

TEST(TopologyTest, ADaemonAloneHoldsTheOnlyShardGroup) {
  ASSERT_OK_AND_ASSIGN(const Topology alone, Create({3}, 0));
  EXPECT_EQ(alone.shard_size(), 3);
  EXPECT_EQ(alone.world_size(), 3);
  EXPECT_EQ(alone.GroupRank(2), 2);
  EXPECT_EQ(alone.LocalRank(2), 2);
  EXPECT_FALSE(alone.spans_daemons());
  EXPECT_FALSE(alone.has_replicas());
  EXPECT_FALSE(alone.group_has_mesh());
  EXPECT_FALSE(alone.needs_rendezvous());
  EXPECT_TRUE(alone.may_sum_at_commit());
}

TEST(TopologyTest, ReplicasLieInDaemons) {
  ASSERT_OK_AND_ASSIGN(const Topology second, Create({2, 2, 2}, 1));
  EXPECT_EQ(second.shard_size(), 2);
  EXPECT_EQ(second.world_size(), 6);
  EXPECT_EQ(second.first_rank(), 2);
  EXPECT_EQ(second.GroupRank(1), 1);
  EXPECT_EQ(second.LocalRank(1), 1);
  EXPECT_TRUE(second.has_replicas());
  EXPECT_FALSE(second.spans_daemons());
  EXPECT_FALSE(second.group_has_mesh());
  EXPECT_TRUE(second.needs_rendezvous());
  EXPECT_FALSE(second.may_sum_at_commit());
}

TEST(TopologyTest, OneGroupMaySpanUnequalDaemons) {
  ASSERT_OK_AND_ASSIGN(const Topology second, Create({2, 1}, 1, 3));
  EXPECT_EQ(second.first_rank(), 2);
  EXPECT_EQ(second.rank_count(), 1);
  EXPECT_EQ(second.GroupRank(0), 2);
  EXPECT_EQ(second.LocalRank(2), 0);
  EXPECT_TRUE(second.spans_daemons());
  EXPECT_TRUE(second.group_has_mesh());
  EXPECT_FALSE(second.has_replicas());
}

TEST(TopologyTest, MeshesInsideADaemonNeedTwoRanks) {
  ASSERT_OK_AND_ASSIGN(const Topology two, Create({2}, 0, {}, /*mesh_inside=*/true));
  EXPECT_TRUE(two.group_has_mesh());
  EXPECT_TRUE(two.needs_rendezvous());
  EXPECT_FALSE(two.may_sum_at_commit());
  ASSERT_OK_AND_ASSIGN(const Topology one, Create({1}, 0, {}, /*mesh_inside=*/true));
  EXPECT_FALSE(one.group_has_mesh());
  EXPECT_FALSE(one.needs_rendezvous());
}

TEST(TopologyTest, ASizeThatIsNeitherIsRefused) {
  EXPECT_THAT(Create({4}, 0, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("shard size 2: want 4 (the devices of one daemon) or 4 (all devices of")));
  EXPECT_THAT(Create({2, 2}, 1, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("or 4 (all devices of the world)")));
}

// Each of the daemons says so, whether the size is asked for or is the default.
TEST(TopologyTest, ReplicasInUnequalDaemonsAreRefused) {
  for (const int node : {0, 1}) {
    EXPECT_THAT(Create({2, 1}, node),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("want 3, all devices of the world: the daemons have 2, 1 devices")));
  }
  EXPECT_THAT(Create({2, 1}, 0, 2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shard size 2")));
  EXPECT_FALSE(Create({2, 1}, 1, 2).ok());
}

}  // namespace
}  // namespace paramshard::server
