#include "kernels/products/tile_schedule.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace paramshard::gpu {
namespace {

std::set<std::tuple<int, int, int>> Unique(const std::vector<Tile>& tiles) {
  std::set<std::tuple<int, int, int>> unique;
  for (const Tile& tile : tiles) unique.emplace(tile.grid, tile.row, tile.column);
  return unique;
}

int64_t CostOf(const std::vector<TileGrid>& grids, const std::vector<Tile>& tiles) {
  int64_t cost = 0;
  for (const Tile& tile : tiles) cost += grids[tile.grid].cost;
  return cost;
}

TEST(TileScheduleTest, EachTileIsThereOnceAndTheExpensiveOnesAreFirst) {
  const std::vector<TileGrid> grids = {{.rows = 3, .columns = 2, .cost = 5}, {.rows = 2, .columns = 4, .cost = 9}};
  const std::vector<Tile> tiles = TilesOf(grids);
  EXPECT_EQ(tiles.size(), 14u);
  EXPECT_EQ(Unique(tiles).size(), 14u);
  for (size_t i = 0; i < tiles.size(); ++i) EXPECT_EQ(tiles[i].grid, i < 8 ? 1 : 0);
}

TEST(TileScheduleTest, TilesAboveTheDiagonalOfASymmetricGridAreLeftOut) {
  const std::vector<Tile> tiles = TilesOf({{.rows = 8, .columns = 8, .cost = 1, .is_symmetric = true}});
  EXPECT_EQ(Unique(tiles).size(), 36u);
  EXPECT_TRUE(std::all_of(tiles.begin(), tiles.end(), [](const Tile& tile) { return tile.row >= tile.column; }));
}

// The Gram matrices of one layer with 64 million elements, on a GPU with 66 pairs of multiprocessors.
TEST(TileScheduleTest, ProductsOfALayerKeepAllWorkersBusy) {
  std::vector<TileGrid> grids(3, {.rows = 8, .columns = 8, .cost = 132, .is_symmetric = true});
  grids.insert(grids.end(), 2, {.rows = 8, .columns = 8, .cost = 36, .is_symmetric = true});
  grids.insert(grids.end(), 2, {.rows = 4, .columns = 4, .cost = 36, .is_symmetric = true});
  constexpr int kWorkers = 66;
  const std::vector<Tile> tiles = TilesOf(grids);
  const std::vector<std::vector<Tile>> assigned = AssignTiles(grids, tiles, kWorkers);
  ASSERT_EQ(assigned.size(), kWorkers);
  int64_t all = 0;
  int64_t most = 0;
  std::vector<Tile> together;
  for (const std::vector<Tile>& some : assigned) {
    const int64_t cost = CostOf(grids, some);
    all += cost;
    most = std::max(most, cost);
    together.insert(together.end(), some.begin(), some.end());
  }
  EXPECT_EQ(Unique(together), Unique(tiles));
  EXPECT_EQ(all, CostOf(grids, tiles));
  EXPECT_LE(static_cast<double>(most), 1.05 * static_cast<double>(all) / kWorkers);
}

}  // namespace
}  // namespace paramshard::gpu
