// Sums of one rank's gradients over a shard group that lies in one daemon.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_LOCAL_REDUCTION_H_
#define PARAMSHARD_SERVER_DATA_PLANE_LOCAL_REDUCTION_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
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
// since a kernel that waits for NVLink would delay the trainers' kernels for longer. With `at_commit`, a push whose own
// rows the trainer has landed only copies them, each unit into receive memory of its own, and leaves the sums to
// TakeSums. A unit's second push between two commits is summed at once, after the sums left by the first. Gradients
// that Land has copied are summed from there. Used by one thread at a time.
class LocalReduction {
 public:
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<LocalReduction> Create(const LocalGroup& group, int rank, bool at_commit);

  // See Collectives.
  absl::Status Land(const LandCall& call);
  absl::StatusOr<std::vector<int32_t>> Reduce(const ReduceCall& call);
  std::vector<SumTask> TakeSums();
  bool sums_at_commit() const { return at_commit_; }
  // Thread-safe.
  int64_t scratch_bytes() const { return received_.size_bytes() + *landed_bytes_; }

 private:
  using Copies = std::vector<DeviceQueue::CopyTask>;
  using Sums = std::vector<SumTask>;

  // Gradients of one push that were landed. Memory has a place for each slice and rank.
  struct LandedPush {
    Memory memory;
    std::vector<char> sources;  // by rank: they are here
  };

  LocalReduction(const LocalGroup& group, int rank, bool at_commit);

  absl::Status Allocate();
  absl::Status CheckLanded(const ReduceCall& call) const;
  // Plans a call: copies of the peers' slices, if they are received, and then the sums.
  void Plan(const ReduceCall& call, const AbsentGradients& absent, Copies& copies, Sums& sums) const;
  SumTask Receive(const ReduceCall& call, const AbsentGradients& absent, const GradientSlice& slice, int64_t at_bytes,
                  Copies& copies) const;
  // Returns where the gradients of `rank` lie that were landed for the push; null if they were not.
  uint8_t* LandedFor(const ReduceCall& call, const GradientSlice& slice, int rank) const;
  // Returns the place of a slice in the memory of a landed push.
  int64_t LandedOffset(int unit, const GradientSlice& slice, int rank) const;
  // Landed gradients take no more memory than they leave on the device: the rest is the trainers'. RESOURCE_EXHAUSTED.
  absl::StatusOr<Memory> TakeLandingMemory(int unit);
  bool HasRoomToLand(int64_t bytes) const;
  void GiveUpFreeMemory();

  // Constant after Create.
  LocalGroup group_;
  int rank_;
  bool at_commit_;
  bool receives_;                        // else the peers' slices are summed where they lie
  std::vector<int64_t> receive_offset_;  // by unit
  Memory received_;
  std::unique_ptr<DeviceQueue> queue_;

  std::vector<Sums> left_;                            // by unit, for TakeSums
  std::map<int64_t, LandedPush> landed_;              // by push
  std::vector<std::vector<Memory>> free_;             // by unit: memory for landed pushes
  std::vector<std::vector<Memory>> left_memory_;      // by unit: of sums in left_
  std::vector<std::pair<int, Memory>> taken_memory_;  // with the unit: of sums that TakeSums has returned
  std::shared_ptr<std::atomic<int64_t>> landed_bytes_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_LOCAL_REDUCTION_H_
