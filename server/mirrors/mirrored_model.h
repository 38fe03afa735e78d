// A mirror's two copies of a model's planes.
#ifndef PARAMSHARD_SERVER_MIRRORS_MIRRORED_MODEL_H_
#define PARAMSHARD_SERVER_MIRRORS_MIRRORED_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/model/layout.h"
#include "common/shared_memory/publication_page.h"
#include "server/base/steady_time.h"
#include "server/base/thread_pool.h"
#include "server/device/compute_device.h"
#include "server/device/memory.h"
#include "server/observe/metric_registry.h"
#include "server/state/publication.h"
#include "server/state/published_planes.h"

namespace paramshard::server {

// A version is received into one copy, in host memory, and staged when it is whole; readers read the other, the active
// one. On CPU devices they map both, which generations of the publication take in turn: an activation copies nothing.
// Where there are GPUs they map the active one in memory of the devices, and an activation copies the staged one to it.
// Thread-safe.
class MirroredModel : public std::enable_shared_from_this<MirroredModel> {
 public:
  // The planes of rank R lie on device R modulo their number; devices outlive the model. RESOURCE_EXHAUSTED no memory for
  // two copies; errors of the devices.
  static absl::StatusOr<std::shared_ptr<MirroredModel>> Create(Layout layout, uint64_t spec_fingerprint,
                                                               uint64_t layout_fingerprint,
                                                               absl::Span<ComputeDevice* const> devices,
                                                               const Publication::Options& publication);
  ~MirroredModel() { End("the mirror has let go of the model"); }

  const Layout& layout() const { return layout_; }
  uint64_t spec_fingerprint() const { return spec_fingerprint_; }
  uint64_t layout_fingerprint() const { return layout_fingerprint_; }
  Publication& publication() const { return *publication_; }
  PublishedPlanes published() const;
  int64_t plane_bytes() const { return plane_bytes_; }

  // Drops the staged version, whose memory the caller may fill from now on. One caller at a time.
  void BeginStaging();
  // Memory of a rank for the caller that has begun.
  absl::Span<uint8_t> staging(int rank) const;
  // The memory is whole.
  void Stage(const wire::PublishedVersion& version);
  // Makes the staged version the active one: readers are waited for, as the publication says. FAILED_PRECONDITION
  // another version is staged, or none; OK if that commit is active already. Unset: any. After an error of a device
  // readers have no version until the next one.
  absl::Status Activate(std::optional<int64_t> commit_number);
  // The model is gone. Readers are told why.
  void End(absl::string_view why) { publication_->End(why); }

  std::optional<wire::PublishedVersion> active() const;
  std::optional<wire::PublishedVersion> staged() const;
  // Time since the active version became active.
  absl::Duration age() const;

 private:
  // Threads that copy a rank's planes: readers wait for them.
  static constexpr int kParts = 4;
  // A rank's two copies.
  struct Copies {
    const ComputeDevice* device = nullptr;
    Memory planes;                                     // that readers map: copies_
    Memory staging = {};                               // empty if these are both; likewise what follows
    std::unique_ptr<Memory::Owner> open_staging = {};  // to the device; null where it needs none
    std::unique_ptr<DeviceQueue> queues[kParts] = {};  // guarded by activating_
  };

  MirroredModel(Layout layout, uint64_t spec_fingerprint, uint64_t layout_fingerprint,
                std::shared_ptr<Publication> publication, MetricRegistry* metrics);
  // `pool`: null where readers map both copies.
  absl::Status MakeStagedActive(ThreadPool* pool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(activating_);
  absl::Status CheckStaged(int64_t commit_number) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after Create.
  const Layout layout_;
  const uint64_t spec_fingerprint_;
  const uint64_t layout_fingerprint_;
  const std::shared_ptr<Publication> publication_;
  MetricRegistry& metrics_;
  int copies_ = 1;  // that readers map
  std::vector<Copies> ranks_;
  int64_t plane_bytes_ = 0;

  absl::Mutex activating_ ABSL_ACQUIRED_BEFORE(mu_);  // held while the staging memory is read
  mutable absl::Mutex mu_;
  std::optional<wire::PublishedVersion> active_ ABSL_GUARDED_BY(mu_);
  std::optional<wire::PublishedVersion> staged_ ABSL_GUARDED_BY(mu_);
  SteadyTime activated_at_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MIRRORS_MIRRORED_MODEL_H_
