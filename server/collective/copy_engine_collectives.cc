#include "server/collective/copy_engine_collectives.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/collective/scratch_memory.h"

namespace paramshard::server {
namespace {

int64_t SliceBytes(const LocalGroup& group, int unit, const GradientSlice& slice) {
  return slice.elements * GradientBytes(group.gradient_type(unit, slice.parameter));
}

int64_t Padded(int64_t bytes) {
  return (bytes + kCopyEngineSliceAlignment - 1) / kCopyEngineSliceAlignment * kCopyEngineSliceAlignment;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> CopyEngineCollectives::Create(const LocalGroup& group, int rank) {
  ComputeDevice& own = *group.memory[rank].device;
  const int device = own.id().index;
  if (group.ranks() > gpu::kMaxGradientSources) {
    return absl::InvalidArgumentError(absl::StrCat("copy engine: at most ", gpu::kMaxGradientSources,
                                                   " GPUs in one daemon expected, got ", group.ranks()));
  }
  const int64_t receive_bytes = ReceiveMemoryBytes(*group.model, *group.layout, rank, kCopyEngineSliceAlignment);
  ASSIGN_OR_RETURN(Memory received, own.Allocate("paramshard-receive", receive_bytes, Sharing::kPrivate));
  ASSIGN_OR_RETURN(gpu::Stream gathers, gpu::Stream::Create(device));
  ASSIGN_OR_RETURN(gpu::Stream reductions, gpu::Stream::Create(device));
  return std::unique_ptr<Collectives>(
      new CopyEngineCollectives(group, rank, std::move(received), std::move(gathers), std::move(reductions)));
}

CopyEngineCollectives::CopyEngineCollectives(LocalGroup group, int rank, Memory received, gpu::Stream gathers,
                                             gpu::Stream reductions)
    : group_(std::move(group)),
      rank_(rank),
      received_(std::move(received)),
      gathers_(std::move(gathers)),
      reductions_(std::move(reductions)) {}

const gpu::BatchCopy& CopyEngineCollectives::CopiesOf(const GatherCall& call) {
  const auto [entry, is_new] = copies_.try_emplace({call.unit, call.use, call.slot});
  if (!is_new) return entry->second;
  const std::vector<PieceCopy> pieces = group_.layout->Pieces(call.unit, call.use, rank_);
  // Every rank begins with its next neighbour, so that the ranks write different peers.
  for (int step = 1; step < group_.ranks(); ++step) {
    const int peer = (rank_ + step) % group_.ranks();
    uint8_t* const slot = group_.memory[peer].slots + group_.layout->slot_offsets()[call.slot];
    for (const PieceCopy& piece : pieces) {
      entry->second.Add(slot + piece.target, group_.memory[rank_].arena + piece.source, piece.bytes);
    }
  }
  return entry->second;
}

absl::Status CopyEngineCollectives::Gather(const GatherCall& call,
                                           absl::FunctionRef<void(int rank, int source)> delivered) {
  RETURN_IF_ERROR(abort_.status());
  const gpu::DeviceScope scope(gathers_.device());
  RETURN_IF_ERROR(CopiesOf(call).Enqueue(gathers_.get()));
  for (int step = 1; step < group_.ranks(); ++step) {
    const int peer = (rank_ + step) % group_.ranks();
    ready_.Write(&group_.memory[peer].words.ready(call.slot, rank_), static_cast<uint32_t>(call.number));
  }
  RETURN_IF_ERROR(ready_.Enqueue(gathers_.get()));
  RETURN_IF_ERROR(gathers_.Poll());
  for (int step = 1; step < group_.ranks(); ++step) delivered((rank_ + step) % group_.ranks(), rank_);
  return abort_.status();
}

absl::Status CopyEngineCollectives::Reduce(const ReduceCall& call) {
  RETURN_IF_ERROR(abort_.status());
  std::vector<gpu::GradientSumTask> tasks;
  gpu::BatchCopy copies;
  uint8_t* received = received_.data();
  for (const GradientSlice& slice : group_.layout->Slices(call.unit, rank_)) {
    if (call.accumulators[slice.parameter] == nullptr) continue;  // absent
    tasks.push_back(Receive(call, slice, received, copies));
    received += Padded(SliceBytes(group_, call.unit, slice)) * (group_.ranks() - 1);
  }
  const gpu::DeviceScope scope(reductions_.device());
  RETURN_IF_ERROR(copies.Enqueue(reductions_.get()));
  RETURN_IF_ERROR(gpu::SumGradients(tasks, reductions_.get()));
  RETURN_IF_ERROR(reductions_.Synchronize());
  return abort_.status();
}

gpu::GradientSumTask CopyEngineCollectives::Receive(const ReduceCall& call, const GradientSlice& slice,
                                                    uint8_t* received, gpu::BatchCopy& copies) const {
  const int64_t bytes = SliceBytes(group_, call.unit, slice);
  gpu::GradientSumTask task;
  task.source_count = group_.ranks();
  task.sources[rank_] = group_.Gradients(call, slice, rank_);
  for (int step = 1; step < group_.ranks(); ++step) {
    const int peer = (rank_ + step) % group_.ranks();
    copies.Add(received, group_.Gradients(call, slice, peer), bytes);
    task.sources[peer] = received;
    received += Padded(bytes);
  }
  task.type = group_.gradient_type(call.unit, slice.parameter);
  task.count = slice.elements;
  task.overwrite = call.overwrite[slice.parameter];
  task.accumulator = call.accumulators[slice.parameter];
  return task;
}

}  // namespace paramshard::server
