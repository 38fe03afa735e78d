#include "server/data_plane/local_reduction.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/data_plane/scratch_memory.h"

namespace paramshard::server {
namespace {

int64_t SliceBytes(const ModelSpec& model, int unit, const GradientSlice& slice) {
  return slice.elements * GradientBytes(model.units[unit].parameters[slice.parameter].gradient_type);
}

}  // namespace

absl::StatusOr<LocalReduction> LocalReduction::Create(const LocalGroup& group, int rank, bool at_commit) {
  LocalReduction reduction(group, rank, at_commit);
  RETURN_IF_ERROR(reduction.Allocate());
  return reduction;
}

LocalReduction::LocalReduction(const LocalGroup& group, int rank, bool at_commit)
    : group_(group),
      rank_(rank),
      at_commit_(at_commit),
      receives_(at_commit || group.memory[rank].device->id().kind == DeviceKind::kCuda),
      receive_offset_(group.model->units.size(), 0),
      left_(group.model->units.size()) {}

absl::Status LocalReduction::Allocate() {
  ComputeDevice& device = *group_.memory[rank_].device;
  int64_t bytes = 0;
  for (int unit = 0; unit < static_cast<int>(receive_offset_.size()); ++unit) {
    const int64_t unit_bytes = UnitReceiveBytes(*group_.model, *group_.layout, rank_, unit, kCopyEngineSliceAlignment);
    if (at_commit_) receive_offset_[unit] = bytes;
    bytes = at_commit_ ? bytes + unit_bytes : std::max(bytes, unit_bytes);
  }
  ASSIGN_OR_RETURN(received_, device.Allocate("paramshard-receive", receives_ ? bytes : 0, Sharing::kPrivate));
  ASSIGN_OR_RETURN(queue_, device.MakeQueue());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> LocalReduction::Reduce(const ReduceCall& call) {
  RETURN_IF_ERROR(CheckLanded(call));
  // The unit's receive memory is reused.
  Sums& left = left_[call.unit];
  if (!left.empty()) RETURN_IF_ERROR(queue_->Sum(std::exchange(left, {})));
  const AbsentGradients absent(group_.ranks(), static_cast<int>(call.accumulators.size()), call.absent);
  Copies copies;
  Sums sums;
  Plan(call, absent, copies, sums);
  if (call.own_slices_landed) {
    left = std::move(sums);
    RETURN_IF_ERROR(queue_->Copy(copies));
  } else {
    RETURN_IF_ERROR(queue_->Run(copies, sums));
  }
  return absent.OnAllMembers();
}

absl::Status LocalReduction::CheckLanded(const ReduceCall& call) const {
  if (!call.own_slices_landed || (at_commit_ && left_[call.unit].empty())) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("push ", group_.model->units[call.unit].name, ": want gradients of this rank to land ",
                   at_commit_ ? "once between two commits" : "only where sums wait for the commit",
                   ", got them again in command ", call.number));
}

void LocalReduction::Plan(const ReduceCall& call, const AbsentGradients& absent, Copies& copies, Sums& sums) const {
  int64_t at_bytes = receive_offset_[call.unit];
  int64_t size_bytes = 0;
  for (const GradientSlice& slice : group_.layout->Slices(call.unit, rank_)) {
    SumTask sum = Receive(call, absent, slice, at_bytes, copies);
    if (sum.sources.empty()) continue;
    const auto peers = static_cast<int64_t>(sum.sources.size()) - (absent.Has(rank_, slice.parameter) ? 0 : 1);
    at_bytes += Padded(SliceBytes(*group_.model, call.unit, slice), kCopyEngineSliceAlignment) * peers;
    size_bytes += SliceBytes(*group_.model, call.unit, slice) * peers;
    sums.push_back(std::move(sum));
  }
  group_.metrics->AddMoved(group_.moved_by(), MoveDirection::kReceived, size_bytes);
}

SumTask LocalReduction::Receive(const ReduceCall& call, const AbsentGradients& absent, const GradientSlice& slice,
                                int64_t at_bytes, Copies& copies) const {
  const int64_t bytes = SliceBytes(*group_.model, call.unit, slice);
  SumTask sum{.sources = std::vector<const void*>(group_.ranks()),
              .type = group_.gradient_type(call.unit, slice.parameter),
              .count = slice.elements,
              .overwrite = call.overwrite[slice.parameter],
              .accumulator = call.accumulators[slice.parameter]};
  if (!absent.Has(rank_, slice.parameter)) {
    sum.sources[rank_] = call.own_slices_landed ? group_.Landed(slice, rank_) : group_.Gradients(call, slice, rank_);
  }
  for (int step = 1; step < group_.ranks(); ++step) {
    const int peer = (rank_ + step) % group_.ranks();
    if (absent.Has(peer, slice.parameter)) continue;
    sum.sources[peer] = group_.Gradients(call, slice, peer);
    if (!receives_) continue;
    uint8_t* const received = received_.data() + at_bytes;
    copies.push_back({received, std::exchange(sum.sources[peer], received), bytes});
    at_bytes += Padded(bytes, kCopyEngineSliceAlignment);
  }
  if (!absent.empty())
    sum.sources.erase(std::remove(sum.sources.begin(), sum.sources.end(), nullptr), sum.sources.end());
  return sum;
}

std::vector<SumTask> LocalReduction::TakeSums() {
  Sums all;
  for (Sums& left : left_) {
    std::move(left.begin(), left.end(), std::back_inserter(all));
    left.clear();
  }
  return all;
}

}  // namespace paramshard::server
