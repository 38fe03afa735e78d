// The engine of `cpu` devices when one shard group spans all daemons: Gloo over TCP.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_GLOO_COLLECTIVES_H_
#define PARAMSHARD_SERVER_COLLECTIVE_GLOO_COLLECTIVES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "server/collective/abort_state.h"
#include "server/collective/collectives.h"
#include "server/collective/command_header.h"
#include "server/collective/tcp_mesh.h"
#include "server/layout/layout.h"
#include "server/layout/model_spec.h"

namespace paramshard::server {

// Gather pulls: pieces of all ranks, its own too, land in this rank's slot straight from the
// connections, after all ranks have said that they are at the same command. Reduce receives the
// peers' slices of this rank's extents into memory of the engine and sums them in rank order with
// its own.
class GlooCollectives final : public Collectives {
 public:
  struct Options {
    const ModelSpec* model = nullptr;  // outlives the engine
    const Layout* layout = nullptr;    // outlives the engine
    RankMemory memory;
    absl::Duration timeout;
  };

  // `gather` and `reduce` connect all ranks of the world, in order.
  GlooCollectives(const Options& options, std::unique_ptr<TcpMesh> gather, std::unique_ptr<TcpMesh> reduce);

  absl::Status Gather(const GatherCall& call, absl::FunctionRef<void(int rank, int source)> delivered) override;
  absl::Status Reduce(const ReduceCall& call) override;
  void Abort(const absl::Status& status) override;
  bool lands_own_pieces() const override { return true; }
  int64_t scratch_bytes() const override { return static_cast<int64_t>(received_.size()); }
  absl::string_view name() const override { return "gloo"; }

 private:
  int rank() const { return gather_->self(); }
  int ranks() const { return gather_->size(); }

  absl::Status TryGather(const GatherCall& call, absl::Time deadline,
                         absl::FunctionRef<void(int rank, int source)> delivered);
  void LandOwnPieces(const GatherCall& call);
  std::vector<PeerTransfer> GatherTransfers(const GatherCall& call);

  absl::Status TryReduce(const ReduceCall& call, absl::Time deadline);
  std::vector<PeerTransfer> ReduceTransfers(const ReduceCall& call);
  void Sum(const ReduceCall& call) const;

  int64_t GradientSliceBytes(int unit, const GradientSlice& slice) const;
  // Of this rank's slices of a unit, each padded so that the next is aligned.
  int64_t ReceiveBytes(int unit) const;
  // Where the slices of `peer` are received.
  uint8_t* ReceivedFrom(int peer, int unit);
  const uint8_t* ReceivedFrom(int peer, int unit) const;
  uint8_t* GradientSlot(int slot) const;

  // The first error stays.
  absl::Status Settle(const absl::Status& status, const CommandHeader& header);

  // Constant after construction.
  const Options options_;
  const std::unique_ptr<TcpMesh> gather_;
  const std::unique_ptr<TcpMesh> reduce_;

  std::vector<uint8_t> received_;  // used by Reduce
  AbortState end_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_COLLECTIVE_GLOO_COLLECTIVES_H_
