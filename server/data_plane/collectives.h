// Interface of all engines, which move bytes between ranks.
//
// A Collectives object is one rank's end of a shard group (and of its replicas) for one epoch. The daemon calls Gather
// and GatherDone from the rank's gather thread, Land and Reduce from its push thread. Engines between daemons (meshes)
// get the same calls in the same order on all ranks: they may block until the other ranks have made theirs, but no
// longer than the deadline given to the engine, and no longer than Abort, and never touch memory of a rank that has not
// agreed to the same command. Engines inside a daemon wait for no other rank, and get the gathers of each rank in its
// own order, and pushes of each unit in order. The engines of one daemon are destroyed together, when no call is in
// progress; then nothing touches the ranks' memory any more.
//
// Errors: the status of Abort, first; FAILED_PRECONDITION ranks disagree on the command (names both; nothing was
// written); DEADLINE_EXCEEDED a rank timed out (names it); UNAVAILABLE the connection to a rank broke (names it). After
// an error of its own an engine between daemons has ended: later calls fail too.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_COLLECTIVES_H_
#define PARAMSHARD_SERVER_DATA_PLANE_COLLECTIVES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/layout.h"
#include "common/shared_memory/words.h"
#include "kernels/reduce/gradient.h"
#include "server/base/steady_time.h"
#include "server/device/compute_device.h"

namespace paramshard::server {

// Memory of one rank that an engine reads and writes.
struct RankMemory {
  const uint8_t* arena = nullptr;   // this rank's planes, on its device
  uint8_t* slots = nullptr;         // the trainer's slots memory, on the same device: gather slots and gradient slots
  wire::Words words;                // the session's page; open to the device
  ComputeDevice* device = nullptr;  // of the daemon
};

struct GatherCall {
  int64_t number = 0;  // of the command
  int unit = 0;
  Phase phase = Phase::kForward;
  int slot = 0;
  // Group rank whose gather it is: an engine inside a daemon moves pieces into this rank's slot alone. -1: all ranks
  // make the same gather.
  int target = -1;
};

// A rank's gradients that other ranks' pushes have to join. They are copied out of its slot.
struct LandCall {
  int64_t push = 0;  // as in ReduceCall
  int unit = 0;
  int source = 0;  // group rank whose gradients they are
  int slot = 0;    // its gradient slot
  bool own_slices_landed = false;
  absl::Span<const int32_t> absent;  // parameters without a gradient, ascending
};

struct ReduceCall {
  int64_t number = 0;
  int unit = 0;
  int slot = 0;  // gradient slot
  // The rank's own slices lie in its landing area, and the slot may be used again before the commit. Requires
  // sums_at_commit().
  bool own_slices_landed = false;
  // Parameters of the unit without a gradient, ascending, for each rank of this daemon; empty if there are none. A rank
  // adds nothing to their sums, and its memory of them is not read.
  absl::Span<const std::vector<int32_t>> absent;
  // The rank's gradient accumulators, one for each parameter of the unit (the rank's extent; null for an empty extent
  // and for frozen parameters). The sum over all ranks with a gradient (in rank order) and then over replicas with one
  // (in node order) is added, or stored if `overwrite` is set. It is rounded to the accumulator's type once, after all
  // additions. An accumulator stays as it is if no rank has a gradient.
  absl::Span<const MutableGradient> accumulators;
  absl::Span<const bool> overwrite;
  int64_t push = 0;  // unique in the epoch where Land is used: gradients that it has landed are summed, too
  // Gradient slots of this daemon's ranks, where they differ; empty: `slot` on all.
  absl::Span<const int> slots = {};
};

// (rank whose slot is ready, rank whose pieces are there)
using Delivered = absl::FunctionRef<void(int rank, int source)>;

class Collectives {
 public:
  virtual ~Collectives() = default;

  // Copies this rank's pieces of the unit into the slot of the target, or of every other rank of the group, and its own
  // pieces into its own slot if lands_own_pieces(). Returns when the copies are in progress or done. Once GatherDone returns true, the
  // bytes that this rank's call is responsible for are in place:
  //   push engines (memcpy):  this rank's pieces are in all peers' slots;
  //   pull engines (gloo):    all ranks' pieces are in this rank's slot.
  // `delivered(rank, source)` is called, here or by GatherDone, once for each (rank whose slot is ready, rank whose
  // pieces are there) that this call completed, among ranks of this daemon; the caller publishes the ready word. (A
  // GPU's stream has written it already: then this wakes the threads that sleep on it.) Both are ranks of the shard
  // group: they count from 0 in every daemon if groups lie inside daemons, and are the world's ranks if one group spans
  // all.
  // It is called for a rank without pieces of the unit too.
  virtual absl::Status Gather(const GatherCall& call, Delivered delivered) = 0;
  // Returns true if a gather is done. Does not wait. Called for every gather that returned OK, in order, until it is
  // done for its target; the next gathers may have begun before.
  virtual absl::StatusOr<bool> GatherDone(const GatherCall& /*call*/, Delivered /*delivered*/) { return true; }

  // Copies this rank's slices of the source's gradients into memory of this engine, until Reduce sums them in the push of
  // that number: when all ranks' calls have returned the source's slot may be used again. Sums are the same as without
  // it. Only for engines inside a daemon. RESOURCE_EXHAUSTED no memory, and nothing has changed.
  virtual absl::Status Land(const LandCall& call);

  // Sums this rank's slices of the unit's gradients over the group and the replicas. Returns the parameters of the unit
  // that are absent on all ranks of the world, ascending: the same on every rank. When all ranks' calls have returned
  // the slot may be used again. If own slices have landed the sum may be left to TakeSums; sums of one accumulator are
  // made in the order of the calls. FAILED_PRECONDITION own slices have landed although they must not.
  virtual absl::StatusOr<std::vector<int32_t>> Reduce(const ReduceCall& call) = 0;

  // Replaces every value by the largest one of all daemons of the world. Called for the first rank of each daemon,
  // between commands or by the push thread; `number` is the commit's, or 0 before the first command. Requires values
  // that are not NaN. Values of a failed call are unspecified.
  virtual absl::Status MaxOverDaemons(int64_t number, absl::Span<float> values) = 0;
  // Returns the sums that Reduce has left: at most one for each slice, the last of its accumulator. The caller makes
  // them on this rank's device before the accumulator is read and before the next Reduce, or never if the gradients are
  // dropped. Called by the push thread.
  virtual absl::StatusOr<std::vector<SumTask>> TakeSums() { return std::vector<SumTask>(); }

  // Moves host memory between this rank and its counterpart in another daemon, which holds a replica and makes the
  // opposite call with as many bytes. Called before the first command. UNIMPLEMENTED no other daemon holds a replica;
  // DEADLINE_EXCEEDED at `deadline`, which bounds the call instead of the engine's timeout, since the counterpart may
  // have to serve others first.
  virtual absl::Status SendToReplica(int node, absl::Span<const uint8_t> bytes, SteadyTime deadline);
  virtual absl::Status ReceiveFromReplica(int node, absl::Span<uint8_t> bytes, SteadyTime deadline);

  // Ends every call in progress and all later ones with `status`. Callable from any thread, more than once.
  virtual void Abort(const absl::Status& status) = 0;

  virtual bool lands_own_pieces() const = 0;
  // True if sums wait for TakeSums: then the trainer lands its own slices.
  virtual bool sums_at_commit() const { return false; }
  // Bytes that this rank's engine holds for itself on its device: receive memory and partial sums.
  virtual int64_t scratch_bytes() const = 0;
  virtual absl::string_view name() const = 0;
};

inline absl::Status Collectives::Land(const LandCall&) {
  return absl::UnimplementedError("engine: all ranks make the same pushes");
}

inline absl::Status Collectives::SendToReplica(int, absl::Span<const uint8_t>, SteadyTime) {
  return absl::UnimplementedError("engine: it has no replicas in other daemons");
}

inline absl::Status Collectives::ReceiveFromReplica(int node, absl::Span<uint8_t>, SteadyTime deadline) {
  return SendToReplica(node, {}, deadline);
}

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_COLLECTIVES_H_
