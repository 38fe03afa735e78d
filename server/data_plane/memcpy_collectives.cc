#include "server/data_plane/memcpy_collectives.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace paramshard::server {

absl::StatusOr<std::unique_ptr<Collectives>> MemcpyCollectives::Create(const LocalGroup& group, int rank,
                                                                       bool sums_at_commit) {
  ASSIGN_OR_RETURN(LocalReduction reduction, LocalReduction::Create(group, rank, sums_at_commit));
  return std::unique_ptr<Collectives>(new MemcpyCollectives(group, rank, std::move(reduction)));
}

MemcpyCollectives::MemcpyCollectives(LocalGroup group, int rank, LocalReduction reduction)
    : group_(std::move(group)), rank_(rank), reduction_(std::move(reduction)) {}

absl::Status MemcpyCollectives::Gather(const GatherCall& call, Delivered delivered) {
  // Every rank begins with its next neighbour, so that the ranks' threads write different slots.
  for (int step = 1; step < group_.ranks(); ++step) {
    RETURN_IF_ERROR(abort_.status());
    const int peer = (rank_ + step) % group_.ranks();
    if (call.target >= 0 && call.target != peer) continue;
    group_.metrics->AddMoved(MovedBy::kMemcpy, MoveDirection::kSent, group_.CopyPieces(call, rank_, peer));
    delivered(peer, rank_);
  }
  return abort_.status();
}

absl::Status MemcpyCollectives::Land(const LandCall& call) {
  RETURN_IF_ERROR(abort_.status());
  return reduction_.Land(call);
}

absl::StatusOr<std::vector<int32_t>> MemcpyCollectives::Reduce(const ReduceCall& call) {
  RETURN_IF_ERROR(abort_.status());
  absl::StatusOr<std::vector<int32_t>> absent = reduction_.Reduce(call);
  RETURN_IF_ERROR(abort_.status());
  return absent;
}

absl::StatusOr<std::vector<SumTask>> MemcpyCollectives::TakeSums() {
  RETURN_IF_ERROR(abort_.status());
  return reduction_.TakeSums();
}

void MemcpyCollectives::Abort(const absl::Status& status) { abort_.Set(status); }

}  // namespace paramshard::server
