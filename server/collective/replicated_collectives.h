// The engine when every daemon holds a replica: an engine of the daemon inside it, a mesh over the daemons.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_REPLICATED_COLLECTIVES_H_
#define PARAMSHARD_SERVER_COLLECTIVE_REPLICATED_COLLECTIVES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/model/layout.h"
#include "proto/model/model_spec.h"
#include "server/base/steady_time.h"
#include "server/collective/abort_state.h"
#include "server/collective/collectives.h"
#include "server/collective/command_header.h"
#include "server/collective/mesh.h"
#include "server/collective/replica_blocks.h"
#include "server/device/compute_device.h"
#include "server/device/memory.h"

namespace paramshard::server {

// Gather is that of the local engine. Reduce lets it sum over the group, in rank order, into a partial sum. Each daemon
// owns a block of it (replica_blocks.h): it receives the block of this rank's counterparts in all daemons, sums them in
// node order, and sends everybody the sum. So every element is added by one daemon, in the order in which each would add
// all of them, and twice the elements are received however many daemons there are. Two exchange all and add it both.
class ReplicatedCollectives final : public Collectives {
 public:
  struct Options {
    const ModelSpec* model = nullptr;  // outlives the engine
    const Layout* layout = nullptr;    // outlives the engine
    int rank = 0;                      // of the shard group
    ComputeDevice* device = nullptr;   // outlives the engine
    absl::Duration timeout;
    int most_sum_sources = kMostSumSources;  // that the device adds at a time
  };

  // `local` is this rank's end of the shard group, `replicas` connects the daemons' ranks of this index, in node order.
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<Collectives>> Create(const Options& options, std::unique_ptr<Collectives> local,
                                                             std::unique_ptr<Mesh> replicas);

  absl::Status Gather(const GatherCall& call, Delivered delivered) override;
  absl::StatusOr<bool> GatherDone(const GatherCall& call, Delivered delivered) override;
  absl::Status Reduce(const ReduceCall& call) override;
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
  // Its index in the mesh. Requires a node that takes part.
  int MemberOf(int node) const;

  absl::Status TryReduce(const ReduceCall& call, SteadyTime deadline);
  // A unit's partial sums lie one after the other; behind those of the largest unit lies what is received. Parts of
  // absent parameters travel too: sizes then never depend on anything but the layout.
  float* Partials() const { return reinterpret_cast<float*>(partials_.data()); }
  float* Received() const;
  absl::Status SumGroup(const ReduceCall& call);

  // The partial sums of two daemons, exchanged and added by both.
  absl::Status SumPair(const ReduceCall& call, int64_t elements, SteadyTime deadline);
  // Those of more.
  absl::Status SumBlocks(const ReduceCall& call, int64_t elements, SteadyTime deadline);
  // What another daemon has sent of this one's block; in the place of this one the block's sum.
  float* ReceivedBlock(int node, const ReplicaBlocks& blocks) const;
  // Bring the partial sums of this daemon's block, and the sums of all others'.
  std::vector<PeerTransfer> ScatterTransfers(const ReplicaBlocks& blocks) const;
  std::vector<PeerTransfer> GatherTransfers(const ReplicaBlocks& blocks) const;
  absl::Status SumOwnBlock(const ReplicaBlocks& blocks);

  // Makes copies, then adds `parts` of every slice into its accumulator.
  absl::Status Accumulate(const ReduceCall& call, absl::Span<const DeviceQueue::CopyTask> copies,
                          std::vector<const float*> parts);

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

#endif  // PARAMSHARD_SERVER_COLLECTIVE_REPLICATED_COLLECTIVES_H_
