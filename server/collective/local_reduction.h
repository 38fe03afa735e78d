// Sums of gradients over a shard group that lies in one daemon: one rank's end.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_LOCAL_REDUCTION_H_
#define PARAMSHARD_SERVER_COLLECTIVE_LOCAL_REDUCTION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/collective/collectives.h"
#include "server/collective/local_group.h"
#include "server/device/compute_device.h"

namespace paramshard::server {

// It waits for nobody: every rank has filled its slot when Reduce is called.
//
// At the push: the peers' slices are summed where they lie, or on a GPU first copied into receive memory by copy
// engines: a kernel that waits for NVLink would hold the trainers' back for longer. At the commit: a push only copies
// them, each unit into receive memory of its own, and leaves the sums to whoever takes them. A unit's second push
// between two commits is summed at once, after what was left of the first. Used by one thread at a time.
class LocalReduction {
 public:
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<LocalReduction> Create(const LocalGroup& group, int rank, bool at_commit);

  // As Collectives says.
  absl::Status Reduce(const ReduceCall& call);
  std::vector<SumTask> TakeSums();
  bool sums_at_commit() const { return at_commit_; }
  int64_t scratch_bytes() const { return received_.size_bytes(); }

 private:
  using Copies = std::vector<DeviceQueue::CopyTask>;
  using Sums = std::vector<SumTask>;

  LocalReduction(const LocalGroup& group, int rank, bool at_commit);

  absl::Status Allocate();
  absl::Status CheckLanded(const ReduceCall& call) const;
  // Plans what the call asks for: copies of the peers' slices, where they are received, and then the sums.
  void Plan(const ReduceCall& call, Copies& copies, Sums& sums) const;
  SumTask Receive(const ReduceCall& call, const GradientSlice& slice, int64_t at_bytes, Copies& copies) const;

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

#endif  // PARAMSHARD_SERVER_COLLECTIVE_LOCAL_REDUCTION_H_
