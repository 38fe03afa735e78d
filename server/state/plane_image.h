// Copies of a model's planes in host memory, for mirrors.
#ifndef PARAMSHARD_SERVER_STATE_PLANE_IMAGE_H_
#define PARAMSHARD_SERVER_STATE_PLANE_IMAGE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/shared_memory/publication_page.h"
#include "server/base/steady_time.h"
#include "server/device/memory.h"
#include "server/state/committed_state.h"

namespace paramshard::server {

// A rank's planes in host memory.
struct HostPlanes {
  Memory memory;
  std::unique_ptr<Memory::Owner> open;  // to the rank's device; null where it needs none
};

// The planes of the daemon's ranks in one version.
struct PlaneImage {
  wire::PublishedVersion version = {};
  std::vector<HostPlanes> ranks = {};  // by local rank
};

// Returns the bytes of an image.
int64_t PlaneImageBytes(const CommittedState& state);

// Copies the planes as they are in the version with this history and commit number, waiting until `deadline` if it is
// still to come. Writers of planes wait for the copy as they wait for a reader. ABORTED the model has passed the version,
// or a writer did not wait until the copy was whole; DEADLINE_EXCEEDED; CANCELLED; RESOURCE_EXHAUSTED; UNAVAILABLE the
// model is gone; errors of the devices.
absl::StatusOr<PlaneImage> TakePlaneImage(const CommittedState& state, const wire::PublishedVersion& wanted,
                                          SteadyTime deadline, absl::FunctionRef<bool()> is_cancelled);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_PLANE_IMAGE_H_
