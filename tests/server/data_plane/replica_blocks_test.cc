#include "server/data_plane/replica_blocks.h"

#include <cstdint>
#include <iostream>
#include <random>

#include <gtest/gtest.h>

#include "tests/support/random_seed.h"

namespace paramshard::server {
namespace {

TEST(ReplicaBlocksTest, AreTheElementsInNodeOrder) {
  for (const int nodes : {1, 2, 3, 7, 64, 1000}) {
    for (const int64_t elements : {0, 1, 6, 7, 8, 100, 1023, 4096, 1'000'003}) {
      const ReplicaBlocks blocks(elements, nodes);
      int64_t next = 0;
      for (int node = 0; node < nodes; ++node) {
        EXPECT_EQ(blocks.begin(node), next);
        EXPECT_GE(blocks.size(node), 0);
        EXPECT_LE(blocks.size(node), blocks.block_elements());
        next += blocks.size(node);
      }
      EXPECT_EQ(next, elements) << nodes << " nodes";
    }
  }
}

TEST(ReplicaBlocksTest, BeginAtCacheLinesWhereThatCostsLittle) {
  EXPECT_EQ(ReplicaBlocks(1'000'003, 8).block_elements() % ReplicaBlocks::kAlignment, 0);
  EXPECT_EQ(ReplicaBlocks(7, 8).block_elements(), 1);
  EXPECT_EQ(ReplicaBlocks(8 * 17, 8).block_elements(), 17);
}

// Blocks of all others, and then the sums of theirs.
TEST(ReplicaBlocksTest, NobodyReceivesMuchMoreThanTwiceTheElements) {
  const uint64_t seed = FirstSeed(std::random_device{}());
  std::cout << "seed " << seed << std::endl;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    const int nodes = 2 + static_cast<int>(random() % 1000);
    const int64_t elements = 20 * nodes + static_cast<int64_t>(random() % (i % 2 == 0 ? 10'000'000 : 100 * nodes));
    const ReplicaBlocks blocks(elements, nodes);
    for (int node = 0; node < nodes; ++node) {
      const int64_t received = (nodes - 1) * blocks.size(node) + elements - blocks.size(node);
      EXPECT_LE(received * 10, elements * 21) << elements << " elements, " << nodes << " nodes";
    }
  }
}

}  // namespace
}  // namespace paramshard::server
