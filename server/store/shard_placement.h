// Where everything of a shard lies, before anything is allocated.
#ifndef PARAMSHARD_SERVER_STORE_SHARD_PLACEMENT_H_
#define PARAMSHARD_SERVER_STORE_SHARD_PLACEMENT_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "kernels/optim/moment_kind.h"
#include "kernels/optim/state_bands.h"
#include "proto/model/layout.h"
#include "proto/model/model_spec.h"
#include "server/device/compute_device.h"

namespace paramshard::server {

// The arrays of which masters and moments consist. The first stand one behind the other in the memory of masters, those
// of a moment in its own.
inline constexpr int kFloatMasterArray = 0;
inline constexpr int kRemainderArray = 1;
inline constexpr int kMasterArrays = 2;
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
  // What a row takes in each array, in bytes; 0 where it has nothing.
  std::array<int64_t, kStateArrays> row_bytes = {};
  // Where it begins in each array, in bytes from the start of the array's memory; for a trainable parameter before
  // steps move it. Of no meaning where it has nothing.
  std::array<int64_t, kStateArrays> state_offsets = {};
  int64_t gradient_offset = 0;

  int64_t columns() const { return elements / rows.size(); }
};

// Bytes by memory class.
struct ShardBytes {
  int64_t master = 0;
  PerMoment<int64_t> moments = {};
  int64_t gradients = 0;
  int64_t planes = 0;
  // In the memories of masters and moments, where steps move them: in every array so many bytes as two neighbouring
  // bands take in the one where they take most.
  int64_t room = 0;
  int64_t Total() const;
  ShardBytes& operator+=(const ShardBytes& other);
};

// Extents begin at cache lines in every array, so that ranks and vector loads never share one.
inline constexpr int64_t kExtentAlignment = 64;

// Whether steps move the state, and how it is cut for that. These numbers decide where everything lies.
struct MovePolicy {
  bool moves = false;  // the daemon's steps do not yet
  BandRule rule = {};
};

struct ShardPlacement {
  // Names of pieces of memory; a moment's is that of its kind.
  static constexpr char kMasterPiece[] = "master";
  static constexpr char kGradientsPiece[] = "gradients";

  static ShardPlacement Of(const ModelSpec& spec, const Layout& layout, int rank, const MovePolicy& policy = {});

  // The memory of the state by name, with its size in bytes.
  std::vector<std::pair<std::string, int64_t>> Pieces() const;

  // Those of trainable parameters first, in the order of the model, then frozen ones, whose masters stand behind all
  // others and stay where they are.
  std::vector<ShardExtent> extents;
  int trainable_count = 0;
  ShardBytes bytes;
  // The sizes of the memories, with their rooms.
  int64_t master_memory_bytes = 0;
  PerMoment<int64_t> moment_memory_bytes = {};
  // Of the trainable extents. None where a master has a remainder: its upper half is a plane, which trainers map where
  // it is.
  StateMoves moves;
  BandRule rule;  // by which its bands were cut
};

// Where extents begin in an array, one behind the other, as if the array began at 0.
BandedArray LayOut(absl::Span<const ShardExtent> extents, int array);

// What so many rows of a parameter take, 0 for what it does not have.
int64_t MasterBytes(const ParameterSpec& spec, int64_t rows);
int64_t MomentStateBytes(const ParameterSpec& spec, MomentKind kind, int64_t rows);
int64_t AccumulatorBytes(GradientType type, const ParameterSpec& spec, int64_t rows);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STORE_SHARD_PLACEMENT_H_
