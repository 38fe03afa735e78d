#include "server/collective/copy_engine_collectives.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/reduce/gradient_sum_cuda.h"

namespace paramshard::server {

absl::StatusOr<std::unique_ptr<Collectives>> CopyEngineCollectives::Create(const LocalGroup& group, int rank) {
  const int device = group.memory[rank].device->id().index;
  if (group.ranks() > gpu::kMaxGradientSources) {
    return absl::InvalidArgumentError(absl::StrCat("copy engine: at most ", gpu::kMaxGradientSources,
                                                   " GPUs in one daemon expected, got ", group.ranks()));
  }
  ASSIGN_OR_RETURN(gpu::Stream gathers, gpu::Stream::Create(device));
  ASSIGN_OR_RETURN(gpu::Stream reductions, gpu::Stream::Create(device));
  return std::unique_ptr<Collectives>(
      new CopyEngineCollectives(group, rank, std::move(gathers), std::move(reductions)));
}

CopyEngineCollectives::CopyEngineCollectives(LocalGroup group, int rank, gpu::Stream gathers, gpu::Stream reductions)
    : group_(std::move(group)), rank_(rank), gathers_(std::move(gathers)), reductions_(std::move(reductions)) {}

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
  for (const GradientSlice& slice : group_.layout->Slices(call.unit, rank_)) {
    float* const accumulator = call.accumulators[slice.parameter];
    if (accumulator == nullptr) continue;  // absent
    gpu::GradientSumTask& task = tasks.emplace_back();
    task.source_count = group_.ranks();
    for (int rank = 0; rank < group_.ranks(); ++rank) task.sources[rank] = group_.Gradients(call, slice, rank);
    task.type = group_.gradient_type(call.unit, slice.parameter);
    task.count = slice.elements;
    task.overwrite = call.overwrite[slice.parameter];
    task.accumulator = accumulator;
  }
  const gpu::DeviceScope scope(reductions_.device());
  RETURN_IF_ERROR(gpu::SumGradients(tasks, reductions_.get()));
  RETURN_IF_ERROR(reductions_.Synchronize());
  return abort_.status();
}

}  // namespace paramshard::server
