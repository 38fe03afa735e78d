#include "server/state/plane_image.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "server/base/thread_pool.h"

namespace paramshard::server {
namespace {

// A step waits at most for the copy of a piece when the lease has ended.
constexpr int64_t kPieceBytes = int64_t{4} << 20;

}  // namespace

int64_t PlaneImageBytes(const CommittedState& state) {
  int64_t bytes = 0;
  for (const auto& shard : state.shards) bytes += shard->memory().planes().size_bytes();
  return bytes;
}

absl::StatusOr<std::unique_ptr<PlaneImage>> PlaneImage::Begin(const CommittedState& state,
                                                              const wire::PublishedVersion& wanted, SteadyTime deadline,
                                                              absl::FunctionRef<bool()> is_cancelled,
                                                              std::vector<HostPlanes>& memory) {
  memory.resize(state.shards.size());
  Queues queues;
  // Before the lease: writers do not wait for the kernel's pages.
  for (size_t rank = 0; rank < memory.size(); ++rank) {
    ComputeDevice& device = state.shards[rank]->memory().device();
    const int64_t bytes = state.shards[rank]->memory().planes().size_bytes();
    ASSIGN_OR_RETURN(queues.emplace_back(), device.MakeQueue());
    HostPlanes& planes = memory[rank];
    if (planes.device == &device && planes.memory.size_bytes() == bytes) continue;
    // An exchange ends the old opening before its memory.
    std::exchange(planes, HostPlanes{.device = &device});
    ASSIGN_OR_RETURN(planes.memory, Memory::Allocate("paramshard-image", bytes, Sharing::kPrivate));
    ASSIGN_OR_RETURN(planes.open, device.OpenHostMemory(planes.memory));
  }
  ASSIGN_OR_RETURN(Publication::Lease lease,
                   state.publication->TakeAt({.name = "image for mirrors", .pid = getpid(), .uid = geteuid()}, wanted,
                                             deadline, is_cancelled));
  return std::unique_ptr<PlaneImage>(new PlaneImage(std::move(memory), std::move(queues), std::move(lease)));
}

absl::Status PlaneImage::Copy(const CommittedState& state) {
  const absl::Status status =
      OnAllRanks("an image for mirrors", ranks(), [&](int rank) { return CopyRank(state, rank); });
  queues_.clear();
  lease_ = {};
  absl::MutexLock lock(&mu_);
  status_ = status;
  changed_.SignalAll();
  return status;
}

absl::Status PlaneImage::CopyRank(const CommittedState& state, int rank) {
  const Shard& shard = *state.shards[rank];
  const uint8_t* const from = shard.memory().planes().data();
  uint8_t* const to = planes(rank).data();
  for (int64_t offset = 0; offset < planes(rank).size_bytes(); offset += kPieceBytes) {
    const int64_t end = std::min(offset + kPieceBytes, planes(rank).size_bytes());
    {
      // Planes change with the mutex held, and only once the gate has left the generation.
      absl::ReaderMutexLock lock(&shard.mutex());
      if (!state.publication->IsHeld(lease_.generation)) {
        return absl::AbortedError("a step did not wait until the copy for mirrors was whole");
      }
      RETURN_IF_ERROR(queues_[rank]->Copy({{to + offset, from + offset, end - offset}}));
    }
    absl::MutexLock lock(&mu_);
    copied_[rank] = end;
    changed_.SignalAll();
  }
  return absl::OkStatus();
}

absl::Status PlaneImage::AwaitCopied(int rank, int64_t bytes) const {
  absl::MutexLock lock(&mu_);
  while (status_.ok() && copied_[rank] < bytes) changed_.Wait(&mu_);
  return status_;
}

}  // namespace paramshard::server
