// Distribution of the tiles of many products over the workers of a GPU.
//
// Internal to kernels/.

#ifndef PARAMSHARD_KERNELS_PRODUCTS_TILE_SCHEDULE_H_
#define PARAMSHARD_KERNELS_PRODUCTS_TILE_SCHEDULE_H_

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/types/span.h"

namespace paramshard::gpu {

// A product as a grid of tiles. Of a symmetric one, tiles above the diagonal are left out.
struct TileGrid {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t cost = 0;  // of each tile
  bool is_symmetric = false;

  friend bool operator<(const TileGrid& a, const TileGrid& b) {
    return std::tie(a.rows, a.columns, a.cost, a.is_symmetric) < std::tie(b.rows, b.columns, b.cost, b.is_symmetric);
  }
};

struct Tile {
  int32_t grid = 0;
  int32_t row = 0;
  int32_t column = 0;
};

// Returns all tiles, those of the most expensive grids first. Tiles near each other share operands.
std::vector<Tile> TilesOf(absl::Span<const TileGrid> grids);

// Gives each tile, in order, to the worker that has the least to do, and returns the tiles of each worker.
std::vector<std::vector<Tile>> AssignTiles(absl::Span<const TileGrid> grids, absl::Span<const Tile> tiles, int workers);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_PRODUCTS_TILE_SCHEDULE_H_
