// Sums of one rank's gradients over a shard group that lies in one daemon.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_LOCAL_REDUCTION_H_
#define PARAMSHARD_SERVER_DATA_PLANE_LOCAL_REDUCTION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/data_plane/absent_gradients.h"
#include "server/data_plane/collectives.h"
#include "server/data_plane/local_group.h"
#include "server/device/compute_device.h"

namespace paramshard::server {

// Does not wait for other ranks: every rank has filled its slot when Reduce is called.
//
// At the push, the peers' slices are summed where they lie; on a GPU copy engines first copy them into receive memory,
// since a kernel that waits for NVLink would delay the trainers' kernels for longer. With `at_commit`, a push only
// copies them, each unit into receive memory of its own, and leaves the sums to TakeSums. A unit's second push between
// two commits is summed at once, after the sums left by the first. Used by one thread at a time.
class LocalReduction {
 public:
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<LocalReduction> Create(const LocalGroup& group, int rank, bool at_commit);

  // See Collectives.
  absl::StatusOr<std::vector<int32_t>> Reduce(const ReduceCall& call);
  std::vector<SumTask> TakeSums();
  bool sums_at_commit() const { return at_commit_; }
  int64_t scratch_bytes() const { return received_.size_bytes(); }

 private:
  using Copies = std::vector<DeviceQueue::CopyTask>;
  using Sums = std::vector<SumTask>;

  LocalReduction(const LocalGroup& group, int rank, bool at_commit);

  absl::Status Allocate();
  absl::Status CheckLanded(const ReduceCall& call) const;
  // Plans a call: copies of the peers' slices, if they are received, and then the sums.
  void Plan(const ReduceCall& call, const AbsentGradients& absent, Copies& copies, Sums& sums) const;
  SumTask Receive(const ReduceCall& call, const AbsentGradients& absent, const GradientSlice& slice, int64_t at_bytes,
                  Copies& copies) const;

  // Constant after Create.
  LocalGroup group_;
  int rank_;
  bool at_commit_;
  bool receives_;                        // else the peers' slices are summed where they lie
  std::vector<int64_t> receive_offset_;  // by unit
  Memory received_;
  std::unique_ptr<DeviceQueue> queue_;

  std::vector<Sums> left_;  // by unit, for TakeSums
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_LOCAL_REDUCTION_H_
