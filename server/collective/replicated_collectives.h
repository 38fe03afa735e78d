// The engine of `cpu` devices when every daemon holds a replica: plain copies inside it, Gloo over
// the daemons.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_REPLICATED_COLLECTIVES_H_
#define PARAMSHARD_SERVER_COLLECTIVE_REPLICATED_COLLECTIVES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "server/collective/abort_state.h"
#include "server/collective/collectives.h"
#include "server/collective/command_header.h"
#include "server/collective/local_group.h"
#include "server/collective/memcpy_collectives.h"
#include "server/collective/tcp_mesh.h"

namespace paramshard::server {

// Gather is that of MemcpyCollectives. Reduce sums over the group, in rank order, into a partial
// sum; gathers the partial sums of this rank's counterparts in all daemons; and sums those in node
// order.
class ReplicatedCollectives final : public Collectives {
 public:
  // `replicas` connects the daemons' ranks of this index, in node order.
  ReplicatedCollectives(LocalGroup group, int rank, std::unique_ptr<TcpMesh> replicas, absl::Duration timeout);

  absl::Status Gather(const GatherCall& call, absl::FunctionRef<void(int rank, int source)> delivered) override;
  absl::Status Reduce(const ReduceCall& call) override;
  void Abort(const absl::Status& status) override;
  bool lands_own_pieces() const override { return false; }
  int64_t scratch_bytes() const override { return static_cast<int64_t>(partials_.size() * sizeof(float)); }
  absl::string_view name() const override { return "memcpy+gloo"; }

 private:
  absl::Status TryReduce(const ReduceCall& call, absl::Time deadline);
  // A unit's partial sums lie one after the other, the daemons' one after the other.
  int64_t ExtentElements(int unit) const;
  float* Partial(int node, int unit) { return partials_.data() + node * ExtentElements(unit); }
  void SumGroup(const ReduceCall& call);
  std::vector<PeerTransfer> Transfers(int unit);
  void SumReplicas(const ReduceCall& call);

  // Constant after construction.
  const LocalGroup group_;
  const int rank_;
  const absl::Duration timeout_;
  MemcpyCollectives local_;
  const std::unique_ptr<TcpMesh> replicas_;

  std::vector<float> partials_;  // used by Reduce
  AbortState end_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_COLLECTIVE_REPLICATED_COLLECTIVES_H_
