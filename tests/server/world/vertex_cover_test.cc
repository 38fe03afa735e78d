#include "server/world/vertex_cover.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

bool Covers(uint32_t nodes, const std::vector<Edge>& links) {
  const auto has = [&](int node) { return (nodes >> node) % 2 == 1; };
  return std::all_of(links.begin(), links.end(), [&](const Edge& link) { return has(link.first) || has(link.second); });
}

// Tries all sets of nodes but 0.
int SmallestCover(int nodes, const std::vector<Edge>& links) {
  int smallest = nodes;
  for (uint32_t set = 0; set < 1u << nodes; set += 2) {
    if (std::popcount(set) < smallest && Covers(set, links)) smallest = std::popcount(set);
  }
  return smallest;
}

// The links of a world with so many nodes, by the bits of `world`.
std::vector<Edge> Links(int nodes, uint32_t world) {
  std::vector<Edge> links;
  for (int a = 0; a < nodes; ++a) {
    for (int b = a + 1; b < nodes; ++b, world /= 2) {
      if (world % 2 == 1) links.emplace_back(a, b);
    }
  }
  return links;
}

TEST(VertexCoverTest, OfOneLinkIsTheHigherNode) {
  EXPECT_THAT(VertexCover({}), IsEmpty());
  EXPECT_THAT(VertexCover({{1, 2}}), ElementsAre(2));
}

TEST(VertexCoverTest, IsTheNodeThatMostLinksHaveInCommon) {
  EXPECT_THAT(VertexCover({{1, 2}, {1, 3}, {1, 4}}), ElementsAre(1));
  EXPECT_THAT(VertexCover({{1, 2}, {2, 3}, {3, 4}}), ElementsAre(2, 3));
  EXPECT_THAT(VertexCover({{1, 2}, {2, 3}, {3, 4}, {4, 5}}), ElementsAre(2, 4));
}

TEST(VertexCoverTest, HasAllThatDoNotReachNode0) {
  EXPECT_THAT(VertexCover({{0, 1}}), ElementsAre(1));
  EXPECT_THAT(VertexCover({{0, 1}, {0, 2}, {1, 2}, {3, 4}}), ElementsAre(1, 2, 4));
}

TEST(VertexCoverTest, InAllSmallWorldsHasAnEndOfEachLinkAndAtMostOneNodeTooMany) {
  for (const int nodes : {2, 3, 4, 5, 6}) {
    for (uint32_t world = 0; world < 1u << (nodes * (nodes - 1) / 2); ++world) {
      std::vector<Edge> links = Links(nodes, world);
      const std::vector<int> cover = VertexCover(links);
      uint32_t set = 0;
      for (const int node : cover) set |= 1u << node;
      ASSERT_TRUE(std::is_sorted(cover.begin(), cover.end()));
      ASSERT_TRUE(Covers(set, links)) << nodes << " " << world;
      ASSERT_EQ(set % 2, 0) << "node 0";
      ASSERT_LE(cover.size(), SmallestCover(nodes, links) + (nodes < 6 ? 0 : 1)) << nodes << " " << world;
      std::reverse(links.begin(), links.end());
      ASSERT_EQ(VertexCover(links), cover) << "in another order";
    }
  }
}

}  // namespace
}  // namespace paramshard::server
