// Engine for daemons that each hold a replica: a local engine inside the daemon, a mesh between the daemons.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_REPLICATED_COLLECTIVES_H_
#define PARAMSHARD_SERVER_DATA_PLANE_REPLICATED_COLLECTIVES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "server/base/steady_time.h"
#include "server/data_plane/abort_state.h"
#include "server/data_plane/collectives.h"
#include "server/data_plane/command_header.h"
#include "server/data_plane/mesh.h"
#include "server/data_plane/replica_blocks.h"
#include "server/device/compute_device.h"
#include "server/device/memory.h"

namespace paramshard::server {

// Gather uses the local engine. Reduce lets the local engine sum over the group, in rank order, into a partial sum.
// Each daemon owns a block of it (replica_blocks.h): it receives the block from this rank's counterparts in all
// daemons, sums in node order, and sends the sum to all. So one daemon adds each element, in the order that every
// daemon would use, and each daemon receives twice the elements, for any number of daemons. Two daemons exchange
// everything and both add it.
class ReplicatedCollectives final : public Collectives {
 public:
  struct Options {
    const ModelSpec* model = nullptr;  // outlives the engine
    const Layout* layout = nullptr;    // outlives the engine
    int rank = 0;                      // of the shard group
    ComputeDevice* device = nullptr;   // outlives the engine
    absl::Duration timeout;
    int most_sum_sources = kMostSumSources;  // largest number that the device adds at a time
  };

  // `local` is this rank's end of the shard group, `replicas` connects the daemons' ranks of this index, in node order.
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<Collectives>> Create(const Options& options, std::unique_ptr<Collectives> local,
                                                             std::unique_ptr<Mesh> replicas);

  absl::Status Gather(const GatherCall& call, Delivered delivered) override;
  absl::StatusOr<bool> GatherDone(const GatherCall& call, Delivered delivered) override;
  absl::StatusOr<std::vector<int32_t>> Reduce(const ReduceCall& call) override;
  absl::Status MaxOverDaemons(int64_t number, absl::Span<float> values) override;
  absl::Status SendToReplica(int node, absl::Span<const uint8_t> bytes, SteadyTime deadline) override;
  absl::Status ReceiveFromReplica(int node, absl::Span<uint8_t> bytes, SteadyTime deadline) override;
  void Abort(const absl::Status& status) override;
  bool lands_own_pieces() const override { return local_->lands_own_pieces(); }
  int64_t scratch_bytes() const override { return local_->scratch_bytes() + partials_.size_bytes(); }
  absl::string_view name() const override { return name_; }

 private:
  ReplicatedCollectives(const Options& options, std::unique_ptr<Collectives> local, std::unique_ptr<Mesh> replicas);

  absl::Status Allocate();

  absl::Status MoveState(const PeerTransfer& transfer, SteadyTime deadline);
  // Returns the node's index in the mesh. Requires a node that takes part.
  int MemberOf(int node) const;

  absl::StatusOr<std::vector<int32_t>> TryReduce(const ReduceCall& call, SteadyTime deadline);
  // A unit's partial sums lie one after another; received ones follow after the space of the largest unit. Parts of
  // absent parameters are sent too, so that sizes depend only on the layout.
  float* Partials() const { return reinterpret_cast<float*>(partials_.data()); }
  float* Received() const;
  // Returns the parameters that are absent on all ranks of the group: the daemon has no partial sums of them.
  absl::StatusOr<std::vector<int32_t>> SumGroup(const ReduceCall& call);

  // Exchanges the partial sums of two daemons; both add them. `absent`: in each daemon.
  absl::Status SumPair(const ReduceCall& call, int64_t elements, const AbsentGradients& absent, SteadyTime deadline);
  // Sums over more than two daemons, by blocks.
  absl::Status SumBlocks(const ReduceCall& call, int64_t elements, const AbsentGradients& absent, SteadyTime deadline);
  // Returns another daemon's part of this daemon's block; for this daemon itself, the block's sum.
  float* ReceivedBlock(int node, const ReplicaBlocks& blocks) const;
  // Return the transfers of the partial sums of this daemon's block, and of the sums of all other blocks.
  std::vector<PeerTransfer> ScatterTransfers(const ReplicaBlocks& blocks) const;
  std::vector<PeerTransfer> GatherTransfers(const ReplicaBlocks& blocks) const;
  absl::Status SumOwnBlock(int unit, const ReplicaBlocks& blocks, const AbsentGradients& absent);

  // Makes copies, then adds the `parts` of every slice that are not `absent` into its accumulator.
  absl::Status Accumulate(const ReduceCall& call, absl::Span<const DeviceQueue::CopyTask> copies,
                          std::vector<const float*> parts, const AbsentGradients& absent);

  // Constant after construction.
  const Options options_;
  const std::string name_;
  Memory partials_;  // used by Reduce
  std::unique_ptr<DeviceQueue> queue_;

  // Ended before the memory that they use.
  const std::unique_ptr<Collectives> local_;
  const std::unique_ptr<Mesh> replicas_;

  AbortState end_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_REPLICATED_COLLECTIVES_H_
