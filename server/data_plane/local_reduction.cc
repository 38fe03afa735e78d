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
      left_(group.model->units.size()),
      free_(group.model->units.size()),
      left_memory_(group.model->units.size()) {}

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

int64_t LocalReduction::LandedOffset(int unit, const GradientSlice& slice, int rank) const {
  int64_t offset = 0;
  for (const GradientSlice& each : group_.layout->Slices(unit, rank_)) {
    const int64_t bytes = Padded(SliceBytes(*group_.model, unit, each), kCopyEngineSliceAlignment);
    if (each.parameter == slice.parameter) return offset + rank * bytes;
    offset += bytes * group_.ranks();
  }
  return offset;
}

uint8_t* LocalReduction::LandedFor(const ReduceCall& call, const GradientSlice& slice, int rank) const {
  const auto found = landed_.find(call.push);
  if (found == landed_.end() || !found->second.sources[rank]) return nullptr;
  return found->second.memory.data() + LandedOffset(call.unit, slice, rank);
}

absl::StatusOr<Memory> LocalReduction::TakeLandingMemory(int unit) {
  if (!free_[unit].empty()) {
    Memory memory = std::move(free_[unit].back());
    free_[unit].pop_back();
    return memory;
  }
  ComputeDevice& device = *group_.memory[rank_].device;
  const int64_t bytes = LandedOffset(unit, {.parameter = -1}, 0);
  if (!HasRoomToLand(bytes)) GiveUpFreeMemory();
  if (!HasRoomToLand(bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "push ", group_.model->units[unit].name, ": ", bytes, " bytes needed to keep its gradients beside ",
        landed_bytes_->load(), " of other pushes, ", device.AvailableBytes(), " free on ", device.Name()));
  }
  ASSIGN_OR_RETURN(Memory memory, device.Allocate("paramshard-landed", bytes, Sharing::kPrivate));
  *landed_bytes_ += bytes;
  return memory;
}

bool LocalReduction::HasRoomToLand(int64_t bytes) const {
  return bytes == 0 || *landed_bytes_ + bytes <= group_.memory[rank_].device->AvailableBytes() - bytes;
}

void LocalReduction::GiveUpFreeMemory() {
  for (std::vector<Memory>& memories : free_) {
    for (const Memory& memory : memories) *landed_bytes_ -= memory.size_bytes();
    memories.clear();
  }
}

absl::Status LocalReduction::Land(const LandCall& call) {
  for (auto& [unit, memory] : std::exchange(taken_memory_, {})) free_[unit].push_back(std::move(memory));
  auto landed = landed_.find(call.push);
  if (landed == landed_.end()) {
    ASSIGN_OR_RETURN(Memory memory, TakeLandingMemory(call.unit));
    landed = landed_.emplace(call.push, LandedPush{std::move(memory), std::vector<char>(group_.ranks())}).first;
  }
  Copies copies;
  int64_t size_bytes = 0;
  for (const GradientSlice& slice : group_.layout->Slices(call.unit, rank_)) {
    if (std::binary_search(call.absent.begin(), call.absent.end(), slice.parameter)) continue;
    // The trainer has landed them.
    if (call.source == rank_ && call.own_slices_landed) continue;
    const int64_t bytes = SliceBytes(*group_.model, call.unit, slice);
    copies.push_back({landed->second.memory.data() + LandedOffset(call.unit, slice, call.source),
                      group_.Gradients(call.slot, slice, call.source), bytes});
    if (call.source != rank_) size_bytes += bytes;
  }
  RETURN_IF_ERROR(queue_->Copy(copies));
  landed->second.sources[call.source] = true;
  group_.metrics->AddMoved(group_.moved_by(), MoveDirection::kReceived, size_bytes);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> LocalReduction::Reduce(const ReduceCall& call) {
  RETURN_IF_ERROR(CheckLanded(call));
  for (auto& [unit, memory] : std::exchange(taken_memory_, {})) free_[unit].push_back(std::move(memory));
  // The unit's receive memory is reused.
  Sums& left = left_[call.unit];
  if (!left.empty()) RETURN_IF_ERROR(queue_->Sum(std::exchange(left, {})));
  for (Memory& memory : std::exchange(left_memory_[call.unit], {})) free_[call.unit].push_back(std::move(memory));
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
  if (const auto landed = landed_.find(call.push); landed != landed_.end()) {
    (left.empty() ? free_ : left_memory_)[call.unit].push_back(std::move(landed->second.memory));
    landed_.erase(landed);
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
    auto peers = static_cast<int64_t>(sum.sources.size()) - (absent.Has(rank_, slice.parameter) ? 0 : 1);
    for (int peer = 0; peer < group_.ranks(); ++peer) {
      if (peer != rank_ && !absent.Has(peer, slice.parameter) && LandedFor(call, slice, peer) != nullptr) --peers;
    }
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
  const auto slot_of = [&](int rank) { return call.slots.empty() ? call.slot : call.slots[rank]; };
  if (!absent.Has(rank_, slice.parameter)) {
    const void* const landed = call.own_slices_landed ? group_.Landed(slice, rank_) : LandedFor(call, slice, rank_);
    sum.sources[rank_] = landed != nullptr ? landed : group_.Gradients(slot_of(rank_), slice, rank_);
  }
  for (int step = 1; step < group_.ranks(); ++step) {
    const int peer = (rank_ + step) % group_.ranks();
    if (absent.Has(peer, slice.parameter)) continue;
    sum.sources[peer] = LandedFor(call, slice, peer);
    if (sum.sources[peer] != nullptr) continue;
    sum.sources[peer] = group_.Gradients(slot_of(peer), slice, peer);
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
  for (size_t unit = 0; unit < left_.size(); ++unit) {
    std::move(left_[unit].begin(), left_[unit].end(), std::back_inserter(all));
    left_[unit].clear();
    for (Memory& memory : std::exchange(left_memory_[unit], {})) {
      taken_memory_.emplace_back(static_cast<int>(unit), std::move(memory));
    }
  }
  return all;
}

}  // namespace paramshard::server
