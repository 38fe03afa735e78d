// Engine of shard groups that span daemons, over any mesh: Gloo between `cpu` devices, NCCL between GPUs.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_MESH_COLLECTIVES_H_
#define PARAMSHARD_SERVER_DATA_PLANE_MESH_COLLECTIVES_H_

#include <cstdint>
#include <memory>
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
#include "server/device/compute_device.h"
#include "server/device/memory.h"

namespace paramshard::server {

// Gather pulls: pieces of all ranks, its own too, land in this rank's slot straight from the mesh, after all ranks have
// agreed on the command. Reduce receives the peers' slices of this rank's extents into memory of the engine and sums
// them in rank order with its own.
class MeshCollectives final : public Collectives {
 public:
  struct Options {
    const ModelSpec* model = nullptr;  // outlives the engine
    const Layout* layout = nullptr;    // outlives the engine
    RankMemory memory;
    absl::Duration timeout;
    int most_sum_sources = kMostSumSources;  // largest number that the device adds at a time
    int local_rank = 0;                      // of this daemon
  };

  // `gather` and `reduce` connect all ranks of the world, in order. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<Collectives>> Create(const Options& options, std::unique_ptr<Mesh> gather,
                                                             std::unique_ptr<Mesh> reduce);

  absl::Status Gather(const GatherCall& call, Delivered delivered) override;
  absl::StatusOr<std::vector<int32_t>> Reduce(const ReduceCall& call) override;
  absl::Status MaxOverDaemons(int64_t number, absl::Span<float> values) override;
  void Abort(const absl::Status& status) override;
  bool lands_own_pieces() const override { return true; }
  int64_t scratch_bytes() const override { return received_.size_bytes() + chained_.size_bytes(); }
  absl::string_view name() const override { return gather_->name(); }

 private:
  MeshCollectives(const Options& options, std::unique_ptr<Mesh> gather, std::unique_ptr<Mesh> reduce);

  absl::Status Allocate();

  int rank() const { return gather_->self(); }
  int ranks() const { return gather_->size(); }

  absl::Status TryGather(const GatherCall& call, SteadyTime deadline, Delivered delivered);
  absl::Status LandOwnPieces(const GatherCall& call);
  std::vector<PeerTransfer> GatherTransfers(const GatherCall& call);

  absl::StatusOr<std::vector<int32_t>> TryReduce(const ReduceCall& call, SteadyTime deadline);
  // Gradients that are absent do not travel.
  std::vector<PeerTransfer> ReduceTransfers(const ReduceCall& call, const AbsentGradients& absent);
  absl::Status Sum(const ReduceCall& call, const AbsentGradients& absent);
  // Sums more sources than the device adds at a time.
  absl::Status SumChained(std::vector<SumTask> sums);

  int64_t GradientSliceBytes(int unit, const GradientSlice& slice) const;
  // Returns the bytes of this rank's slices of a unit, each padded so that the next one is aligned.
  int64_t ReceiveBytes(int unit) const;
  // Returns where the slices of `peer` are received.
  uint8_t* ReceivedFrom(int peer, int unit) const;
  uint8_t* GradientSlot(int slot) const;

  // Returns the status for a call. The first error is kept.
  absl::Status Settle(const absl::Status& status, const CommandHeader& header);

  // Constant after construction.
  const Options options_;
  Memory received_, chained_;  // used by Reduce
  std::unique_ptr<DeviceQueue> gather_queue_, reduce_queue_;

  // Ended before the memory that they use.
  const std::unique_ptr<Mesh> gather_;
  const std::unique_ptr<Mesh> reduce_;

  AbortState end_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_MESH_COLLECTIVES_H_
