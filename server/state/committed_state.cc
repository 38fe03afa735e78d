#include "server/state/committed_state.h"

#include "kernels/base/status_macros.h"

namespace paramshard::server {

absl::Status CommittedState::Encode(absl::Span<const ScalingBook::Record> scaling, Shard::CancelCheck check_cancelled) {
  book.Restart();
  for (const auto& shard : shards) RETURN_IF_ERROR(shard->MeasureAmaxes(book, check_cancelled));
  book.Settle(book.Offer());
  book.Restore(scaling);
  for (const auto& shard : shards) {
    RETURN_IF_ERROR(shard->EncodePlanes(book, check_cancelled));
    RETURN_IF_ERROR(shard->KeepPlanes());
  }
  return absl::OkStatus();
}

absl::Status CommittedState::EncodeAdopted() const {
  for (const auto& shard : shards) {
    RETURN_IF_ERROR(shard->BringBackPlanes());
    RETURN_IF_ERROR(shard->EncodePlanes(book));
  }
  return absl::OkStatus();
}

std::vector<int64_t> CommittedState::Steps(int64_t parameters) const {
  std::vector<int64_t> steps(parameters);
  for (const auto& shard : shards) shard->CollectSteps(absl::MakeSpan(steps));
  return steps;
}

int64_t CommittedState::plane_copy_bytes() const {
  int64_t bytes = 0;
  for (const auto& shard : shards) bytes += shard->extents().placement().plane_copy_bytes;
  return bytes;
}

}  // namespace paramshard::server
