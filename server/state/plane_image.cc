#include "server/state/plane_image.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

// A step waits at most for the copy of a piece when the lease has ended.
constexpr int64_t kPieceBytes = int64_t{1} << 20;

absl::Status CopyPlanes(const Shard& shard, const Publication& publication, uint64_t generation, const Memory& to) {
  const Memory& planes = shard.memory().planes();
  for (int64_t offset = 0; offset < planes.size_bytes(); offset += kPieceBytes) {
    // Planes change with the mutex held, and only once the gate has left the generation.
    absl::ReaderMutexLock lock(&shard.mutex());
    if (!publication.IsHeld(generation)) {
      return absl::AbortedError("a step did not wait until the copy for mirrors was whole");
    }
    std::memcpy(to.data() + offset, planes.data() + offset, std::min(kPieceBytes, planes.size_bytes() - offset));
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
  for (const auto& shard : state.shards) {
    // Before the lease: writers do not wait for the kernel's pages.
    ASSIGN_OR_RETURN(image.ranks.emplace_back(),
                     Memory::Allocate("paramshard-image", shard->memory().planes().size_bytes(), Sharing::kPrivate));
  }
  Publication& publication = *state.publication;
  ASSIGN_OR_RETURN(const Publication::Lease lease,
                   publication.TakeAt({.name = "image for mirrors", .pid = getpid(), .uid = geteuid()}, wanted,
                                      deadline, is_cancelled));
  image.version = lease.version;
  for (size_t rank = 0; rank < state.shards.size(); ++rank) {
    RETURN_IF_ERROR(CopyPlanes(*state.shards[rank], publication, lease.generation, image.ranks[rank]));
  }
  return image;
}

}  // namespace paramshard::server
