#include "server/collective/memcpy_collectives.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace paramshard::server {

MemcpyCollectives::MemcpyCollectives(LocalGroup group, int rank) : group_(std::move(group)), rank_(rank) {}

absl::Status MemcpyCollectives::Gather(const GatherCall& call,
                                       absl::FunctionRef<void(int rank, int source)> delivered) {
  // Every rank begins with its next neighbour, so that the ranks' threads write different slots.
  for (int step = 1; step < group_.ranks(); ++step) {
    RETURN_IF_ERROR(abort_.status());
    const int peer = (rank_ + step) % group_.ranks();
    group_.CopyPieces(call, rank_, peer);
    delivered(peer, rank_);
  }
  return abort_.status();
}

absl::Status MemcpyCollectives::Reduce(const ReduceCall& call) {
  for (const GradientSlice& slice : group_.layout->Slices(call.unit, rank_)) {
    RETURN_IF_ERROR(abort_.status());
    float* const accumulator = call.accumulators[slice.parameter];
    if (accumulator == nullptr) continue;  // absent
    group_.SumSlice(call, slice, call.overwrite[slice.parameter], accumulator);
  }
  return abort_.status();
}

void MemcpyCollectives::Abort(const absl::Status& status) { abort_.Set(status); }

}  // namespace paramshard::server
