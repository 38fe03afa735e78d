#include "server/state/plane_image.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread_pool.h"

namespace paramshard::server {
namespace {

// A step waits at most for the copy of a piece when the lease has ended.
constexpr int64_t kPieceBytes = int64_t{4} << 20;

absl::Status CopyPlanes(const Shard& shard, const Publication& publication, uint64_t generation, DeviceQueue& queue,
                        const Memory& to) {
  const Memory& planes = shard.memory().planes();
  for (int64_t offset = 0; offset < planes.size_bytes(); offset += kPieceBytes) {
    // Planes change with the mutex held, and only once the gate has left the generation.
    absl::ReaderMutexLock lock(&shard.mutex());
    if (!publication.IsHeld(generation)) {
      return absl::AbortedError("a step did not wait until the copy for mirrors was whole");
    }
    RETURN_IF_ERROR(queue.Copy(
        {{to.data() + offset, planes.data() + offset, std::min(kPieceBytes, planes.size_bytes() - offset)}}));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t PlaneImageBytes(const CommittedState& state) {
  int64_t bytes = 0;
  for (const auto& shard : state.shards) bytes += shard->memory().planes().size_bytes();
  return bytes;
}

absl::StatusOr<PlaneImage> TakePlaneImage(const CommittedState& state, const wire::PublishedVersion& wanted,
                                          SteadyTime deadline, absl::FunctionRef<bool()> is_cancelled) {
  PlaneImage image;
  std::vector<std::unique_ptr<DeviceQueue>> queues;
  // Before the lease: writers do not wait for the kernel's pages.
  for (const auto& shard : state.shards) {
    ComputeDevice& device = shard->memory().device();
    HostPlanes& rank = image.ranks.emplace_back();
    ASSIGN_OR_RETURN(rank.memory,
                     Memory::Allocate("paramshard-image", shard->memory().planes().size_bytes(), Sharing::kPrivate));
    ASSIGN_OR_RETURN(rank.open, device.OpenHostMemory(rank.memory));
    ASSIGN_OR_RETURN(queues.emplace_back(), device.MakeQueue());
  }
  Publication& publication = *state.publication;
  ASSIGN_OR_RETURN(const Publication::Lease lease,
                   publication.TakeAt({.name = "image for mirrors", .pid = getpid(), .uid = geteuid()}, wanted,
                                      deadline, is_cancelled));
  image.version = lease.version;
  RETURN_IF_ERROR(OnAllRanks("an image for mirrors", static_cast<int>(image.ranks.size()), [&](int rank) {
    return CopyPlanes(*state.shards[rank], publication, lease.generation, *queues[rank], image.ranks[rank].memory);
  }));
  return image;
}

}  // namespace paramshard::server
