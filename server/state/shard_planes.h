// Bytes of the planes of a shard's extents.
#ifndef PARAMSHARD_SERVER_STATE_SHARD_PLANES_H_
#define PARAMSHARD_SERVER_STATE_SHARD_PLANES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/layout.h"
#include "kernels/formats/codec.h"
#include "server/device/host_view.h"
#include "server/state/shard_extents.h"
#include "server/state/shard_memory.h"

namespace paramshard::server {

// One plane's bytes as they are served; empty where the format has none.
struct PlaneViews {
  HostView data, scales, amax;
};

// Bytes for a plane; what is empty stays.
struct PlaneContent {
  absl::Span<const uint8_t> data = {};
  absl::Span<const uint8_t> scales = {};
  absl::Span<const uint8_t> amax = {};
};

// Data, scales and amax of a plane, at addresses of the device.
using PlaneSpans = std::array<absl::Span<uint8_t>, 3>;

// Returns the row-wise plane, then the column-wise one where the format has it. `rows` begin where a block does.
std::vector<PlaneSpans> PlanesOf(const ShardMemory& memory, const ShardExtent& extent, RowRange rows);

// Readers hold the shard's mutex shared, and views end with it.

// Reads the planes of the rows of one part.
absl::StatusOr<std::vector<PlaneViews>> PlaneBytes(const ShardMemory& memory, const ShardExtent& extent, RowRange rows);
inline absl::StatusOr<std::vector<PlaneViews>> PlaneBytes(const ShardMemory& memory, const ShardExtent& extent) {
  return PlaneBytes(memory, extent, extent.rows);
}
// Reads the planes of all rows, one plane after the other, a few MiB at a time.
absl::Status ReadPlanes(const ShardMemory& memory, const ShardExtent& extent,
                        absl::FunctionRef<void(const HostView&)> sink);
int64_t PlaneSize(const ShardMemory& memory, const ShardExtent& extent);

// Returns what the row-wise plane decodes to.
absl::StatusOr<std::vector<float>> DecodedPlane(const ShardMemory& memory, const ShardExtent& extent,
                                                const ExtentPart& part);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_SHARD_PLANES_H_
