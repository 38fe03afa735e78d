#include "kernels/products/tile_schedule.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace paramshard::gpu {
namespace {

void AddTiles(const TileGrid& grid, int32_t index, std::vector<Tile>& tiles) {
  // The inner loop goes over the shorter side, whose operand all workers share.
  const bool rows_inside = grid.rows <= grid.columns;
  const int64_t outer = rows_inside ? grid.columns : grid.rows;
  const int64_t inner = rows_inside ? grid.rows : grid.columns;
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t j = 0; j < inner; ++j) {
      const int64_t row = rows_inside ? j : i;
      const int64_t column = rows_inside ? i : j;
      if (grid.is_symmetric && row < column) continue;
      tiles.push_back({index, static_cast<int32_t>(row), static_cast<int32_t>(column)});
    }
  }
}

}  // namespace

std::vector<Tile> TilesOf(absl::Span<const TileGrid> grids) {
  std::vector<int32_t> order(grids.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return grids[a].cost > grids[b].cost; });
  std::vector<Tile> tiles;
  for (const int32_t index : order) AddTiles(grids[index], index, tiles);
  return tiles;
}

std::vector<std::vector<Tile>> AssignTiles(absl::Span<const TileGrid> grids, absl::Span<const Tile> tiles,
                                           int workers) {
  using Load = std::pair<int64_t, int>;  // cost so far, worker
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (int worker = 0; worker < workers; ++worker) least.emplace(0, worker);
  std::vector<std::vector<Tile>> assigned(workers);
  for (const Tile& tile : tiles) {
    const auto [cost, worker] = least.top();
    least.pop();
    assigned[worker].push_back(tile);
    least.emplace(cost + grids[tile.grid].cost, worker);
  }
  return assigned;
}

}  // namespace paramshard::gpu
