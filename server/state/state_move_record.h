// How the steps of a shard move its state, as it is written down for a program that takes over the memory.
#ifndef PARAMSHARD_SERVER_STATE_STATE_MOVE_RECORD_H_
#define PARAMSHARD_SERVER_STATE_STATE_MOVE_RECORD_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/optim/state_bands.h"
#include "server/device/compute_device.h"
#include "server/state/shard_placement.h"

namespace paramshard::server {

// Says completely where the state lies and how the next step cuts and moves it: numbers alone, none of which a build
// may read in another way.
struct StateMoveRecord {
  // Constants with which the program that wrote this was built.
  struct Constants {
    int64_t extent_alignment = kExtentAlignment;
    int64_t move_unit = kMoveUnit;
    int64_t band_lanes = kBandLanes;
    int64_t band_tile_rows = kBandTileRows;
    int64_t band_tile_elements = kBandTileElements;
  };

  // A trainable extent. They follow each other in every array.
  struct Extent {
    int64_t rows = 0;
    int64_t columns = 0;
    std::array<int64_t, kStateArrays> row_bytes = {};  // 0 where it has nothing in an array
    std::vector<int64_t> band_rows = {};               // with which bands begin, counted from the extent's first
  };

  Constants constants = {};
  BandRule rule = {};
  std::vector<Extent> extents = {};
  int64_t distance = 0;  // bytes; 0: steps leave the state where it is
  int64_t position = 0;  // 0 or `distance`
};

StateMoveRecord RecordMoves(const ShardPlacement& placement, int64_t position);

// Makes the moves from the record alone, which may say anything. INVALID_ARGUMENT naming the first number that this
// build cannot carry on with: a constant of another build, impossible bands, less room than a step needs, a position
// that no step leaves.
absl::StatusOr<StateMoves> RebuildMoves(const StateMoveRecord& record);

// Does the same where the state was placed as `placement` says. INVALID_ARGUMENT naming the first difference.
absl::StatusOr<StateMoves> RebuildMoves(const StateMoveRecord& record, const ShardPlacement& placement);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_STATE_MOVE_RECORD_H_
