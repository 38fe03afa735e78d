// Placement of everything in a shard, before anything is allocated.
#ifndef PARAMSHARD_SERVER_STATE_SHARD_PLACEMENT_H_
#define PARAMSHARD_SERVER_STATE_SHARD_PLACEMENT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "kernels/optim/moment_kind.h"
#include "kernels/optim/muon_memory.h"
#include "kernels/optim/state_bands.h"
#include "kernels/reduce/gradient.h"
#include "server/device/compute_device.h"

namespace paramshard::server {

// Arrays of which masters and moments consist. The first three lie one behind the other in the memory of masters, the
// arrays of a moment in its own.
inline constexpr int kFloatMasterArray = 0;
inline constexpr int kRemainderArray = 1;
inline constexpr int kWeightArray = 2;
inline constexpr int kMasterArrays = 3;
inline constexpr int kStateArrays = kMasterArrays + 2 * kMomentCount;
constexpr int MomentArray(MomentKind kind) { return kMasterArrays + 2 * static_cast<int>(kind); }
constexpr int ScaleArray(MomentKind kind) { return MomentArray(kind) + 1; }
constexpr MomentKind MomentOfArray(int array) { return static_cast<MomentKind>((array - kMasterArrays) / 2); }

// The rows of one parameter that the shard owns. Never empty.
struct ShardExtent {
  int unit = 0;
  int parameter = 0;  // within the unit
  RowRange rows;
  int64_t elements = 0;
  // Bytes of a row in each array; 0 where it has nothing.
  std::array<int64_t, kStateArrays> row_bytes = {};
  // Begin in each array, in bytes from the start of the array's memory; for a trainable parameter before steps move it.
  // Without meaning where it has nothing.
  std::array<int64_t, kStateArrays> state_offsets = {};
  int64_t gradient_offset = 0;
  // Null for a frozen parameter, which has no accumulator. Where one push is all that there is to add it is the type of
  // what is pushed, and nothing is rounded.
  std::optional<GradientType> accumulator_type = {};

  int64_t columns() const { return elements / rows.size(); }
  // Returns true if the upper half of a master with a remainder has an array of its own, of which the plane is a copy.
  bool has_weights() const { return row_bytes[kWeightArray] > 0; }
  // Returns the bytes of the extent in all arrays together.
  int64_t StateBytes() const;
  int64_t AccumulatorBytes() const {
    return accumulator_type.has_value() ? elements * GradientBytes(*accumulator_type) : 0;
  }
};

// Bytes by memory class.
struct ShardBytes {
  int64_t master = 0;
  PerMoment<int64_t> moments = {};
  int64_t gradients = 0;
  int64_t planes = 0;
  // In the memories of masters and moments, where steps move them: in every array as many bytes as two neighbouring
  // bands take in the array where they take most.
  int64_t room = 0;
  int64_t Total() const;
  ShardBytes& operator+=(const ShardBytes& other);
};

// Extents begin at cache lines in every array, so that ranks and vector loads never share one.
inline constexpr int64_t kExtentAlignment = 64;

// Says if steps move the state, and how it is cut for that. These numbers decide where everything lies.
//
// A master with a remainder has its upper half in the row-wise plane, which trainers map where it is and which ends
// with the process. Where steps move the state it has an array of its own for them, also if it is frozen, and the plane
// is a copy. Planes of a frozen parameter without a master, which are all that there is of it, then have a copy in host
// memory that no trainer maps.
struct MovePolicy {
  bool moves = false;
  BandRule rule = {};
  bool has_replicas = false;  // other daemons hold replicas, whose gradients are terms of the sums, too
};

struct ShardPlacement {
  // Names of pieces of memory; a moment's piece is named after its kind.
  static constexpr char kMasterPiece[] = "master";
  static constexpr char kGradientsPiece[] = "gradients";
  static constexpr char kPlaneCopyPiece[] = "plane_copy";  // in host memory

  static ShardPlacement Of(const ModelSpec& spec, const Layout& layout, int rank, const MovePolicy& policy = {});

  // The memory of the state on the device by name, with its size in bytes.
  std::vector<std::pair<std::string, int64_t>> Pieces() const;

  // Extents of trainable parameters first, in the order of the model, then of frozen ones, whose masters stand behind
  // all others and stay where they are.
  std::vector<ShardExtent> extents;
  int trainable_count = 0;
  ShardBytes bytes;
  // The sizes of the memories, with their rooms.
  int64_t master_memory_bytes = 0;
  PerMoment<int64_t> moment_memory_bytes = {};
  int64_t plane_copy_bytes = 0;
  StateMoves moves;  // of the trainable extents
  BandRule rule;     // by which its bands were cut
};

// Returns what the memory for Muon's updates and products depends on, for the trainable extents.
std::vector<MuonExtent> MuonExtentsOf(const ModelSpec& spec, const ShardPlacement& placement);

// Where extents begin in an array, one behind the other, as if the array began at 0.
BandedArray LayOut(absl::Span<const ShardExtent> extents, int array);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_SHARD_PLACEMENT_H_
