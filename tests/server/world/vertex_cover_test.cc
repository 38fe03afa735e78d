#include "server/world/vertex_cover.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/random_seed.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

bool Covers(const std::vector<int>& nodes, const std::vector<Edge>& edges) {
  const auto has = [&](int node) { return std::count(nodes.begin(), nodes.end(), node) > 0; };
  return std::all_of(edges.begin(), edges.end(), [&](const Edge& edge) { return has(edge.first) || has(edge.second); });
}

// Tries all sets of nodes but 0: of the smallest covers the one that is the greatest number, node n being bit n.
std::vector<int> CoverByTheLetter(int nodes, const std::vector<Edge>& edges) {
  std::vector<int> best(nodes);
  for (uint32_t set = 0; set < 1u << nodes; set += 2) {
    std::vector<int> cover;
    for (int node = 1; node < nodes; ++node) {
      if ((set >> node) % 2 == 1) cover.push_back(node);
    }
    if (cover.size() <= best.size() && Covers(cover, edges)) best = cover;
  }
  return best;
}

TEST(SmallestCoverTest, OfOneLinkIsTheHigherNode) {
  EXPECT_THAT(SmallestCover({}), IsEmpty());
  EXPECT_THAT(SmallestCover({{1, 2}}), ElementsAre(2));
  EXPECT_THAT(SmallestCover({{2, 1}, {1, 2}}), ElementsAre(2)) << "said by both";
}

TEST(SmallestCoverTest, IsTheNodeThatAllLinksHaveInCommon) {
  EXPECT_THAT(SmallestCover({{1, 2}, {1, 3}, {1, 4}}), ElementsAre(1));
  EXPECT_THAT(SmallestCover({{1, 2}, {2, 3}, {3, 4}}), ElementsAre(2, 4));
}

TEST(SmallestCoverTest, HasAllThatDoNotReachNode0) {
  EXPECT_THAT(SmallestCover({{0, 1}}), ElementsAre(1));
  EXPECT_THAT(SmallestCover({{0, 1}, {0, 2}, {1, 2}, {3, 4}}), ElementsAre(1, 2, 4));
}

TEST(SmallestCoverTest, OfSmallWorldsIsTheOneByTheLetter) {
  const uint64_t seed = FirstSeed(std::random_device()());
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int run = 0; run < 300; ++run) {
    const int nodes = 2 + static_cast<int>(random() % 8);
    std::vector<Edge> edges;
    for (int a = 0; a < nodes; ++a) {
      for (int b = a + 1; b < nodes; ++b) {
        if (random() % 3 == 0) edges.emplace_back(a, b);
      }
    }
    EXPECT_EQ(SmallestCover(edges), CoverByTheLetter(nodes, edges));
  }
}

TEST(SmallestCoverTest, OfALargeWorldIsExactWhileItIsSmallItself) {
  std::vector<Edge> edges;
  for (int node = 1; node <= kMostExactCover; ++node) {
    for (int peer = 100; peer < 1000; ++peer) edges.emplace_back(node, peer);
  }
  EXPECT_THAT(SmallestCover(edges), SizeIs(kMostExactCover));
  for (int node = 1000; node < 1040; node += 2) edges.emplace_back(node, node + 1);
  const std::vector<int> larger = SmallestCover(edges);
  EXPECT_THAT(larger, SizeIs(kMostExactCover + 20));
  EXPECT_TRUE(Covers(larger, edges));
}

}  // namespace
}  // namespace paramshard::server
