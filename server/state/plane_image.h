// Copies of a model's planes in host memory, for mirrors.
#ifndef PARAMSHARD_SERVER_STATE_PLANE_IMAGE_H_
#define PARAMSHARD_SERVER_STATE_PLANE_IMAGE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/shared_memory/publication_page.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"
#include "server/device/compute_device.h"
#include "server/device/memory.h"
#include "server/state/committed_state.h"
#include "server/state/publication.h"

namespace paramshard::server {

// Memory for a rank's planes in host memory.
struct HostPlanes {
  const ComputeDevice* device = nullptr;  // the rank's
  Memory memory = {};
  std::unique_ptr<Memory::Owner> open = {};  // to the device; null where it needs none
};

// Returns the bytes of an image.
int64_t PlaneImageBytes(const CommittedState& state);

// The planes of the daemon's ranks in one version. Its first bytes can be read while the others are being copied.
//
//   ASSIGN_OR_RETURN(const std::unique_ptr<PlaneImage> image, PlaneImage::Begin(state, wanted, ..., memory));
//   image->Copy(state);                               // on one thread
//   RETURN_IF_ERROR(image->AwaitCopied(rank, bytes)); // on another one, before it reads them
class PlaneImage {
 public:
  // Takes a lease on the version with this history and commit number, waiting until `deadline` if it is still to come.
  // Writers of planes wait for the copy as they wait for a reader. `memory` may be of an image before: what does not fit
  // is allocated anew. The image takes it, unless there is an error: ABORTED the model has passed the version;
  // DEADLINE_EXCEEDED; CANCELLED; RESOURCE_EXHAUSTED; UNAVAILABLE the model is gone; errors of the devices.
  static absl::StatusOr<std::unique_ptr<PlaneImage>> Begin(const CommittedState& state,
                                                           const wire::PublishedVersion& wanted, SteadyTime deadline,
                                                           absl::FunctionRef<bool()> is_cancelled,
                                                           std::vector<HostPlanes>& memory);

  // Copies the planes of the same state, once, and ends the lease. ABORTED a writer did not wait until the copy was
  // whole: then the image is worthless; errors of the devices.
  absl::Status Copy(const CommittedState& state);
  // Waits until the first bytes of a rank are copied. Thread-safe. Errors of Copy.
  absl::Status AwaitCopied(int rank, int64_t bytes) const;

  const wire::PublishedVersion& version() const { return version_; }
  int ranks() const { return static_cast<int>(ranks_.size()); }
  const Memory& planes(int rank) const { return ranks_[rank].memory; }  // local rank
  // Gives its memory to another image.
  std::vector<HostPlanes> Release() && { return std::move(ranks_); }

 private:
  using Queues = std::vector<std::unique_ptr<DeviceQueue>>;

  PlaneImage(std::vector<HostPlanes> ranks, Queues queues, Publication::Lease lease)
      : version_(lease.version),
        ranks_(std::move(ranks)),
        queues_(std::move(queues)),
        lease_(std::move(lease)),
        copied_(ranks_.size()) {}
  absl::Status CopyRank(const CommittedState& state, int rank);

  const wire::PublishedVersion version_;
  std::vector<HostPlanes> ranks_;
  // Until the end of Copy.
  Queues queues_;
  Publication::Lease lease_;

  mutable absl::Mutex mu_;
  mutable SteadyCondVar changed_;
  std::vector<int64_t> copied_ ABSL_GUARDED_BY(mu_);  // bytes of each rank
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_PLANE_IMAGE_H_
