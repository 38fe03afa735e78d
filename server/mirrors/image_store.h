// Images of models' planes that mirrors share.
#ifndef PARAMSHARD_SERVER_MIRRORS_IMAGE_STORE_H_
#define PARAMSHARD_SERVER_MIRRORS_IMAGE_STORE_H_

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/shared_memory/publication_page.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"
#include "server/models/model.h"
#include "server/observe/metric_registry.h"
#include "server/state/plane_image.h"

namespace paramshard::server {

// An image for one caller. If the caller was the first, the image is copied on a thread, which ends before this object.
class SharedImage {
 public:
  SharedImage(std::shared_ptr<const PlaneImage> image, std::thread copying)
      : image_(std::move(image)), copying_(std::move(copying)) {}
  SharedImage(SharedImage&&) = default;
  ~SharedImage() {
    if (copying_.joinable()) copying_.join();
  }

  const PlaneImage* operator->() const { return image_.get(); }
  const std::shared_ptr<const PlaneImage>& get() const { return image_; }

 private:
  std::shared_ptr<const PlaneImage> image_;
  std::thread copying_;
};

// Takes images, and bounds their memory. An image lives as long as somebody sends it; callers that want the version of
// an image share it. While images fill the memory, others wait for the end of these transfers: an image that the model
// has passed is shared for a bounded time only, or callers that begin one after the other would keep it, and its memory,
// for ever. The memory of an image is kept for the next one for a while: fresh memory takes longer than the copy.
// Thread-safe; images may outlive the store.
class ImageStore {
 public:
  struct Options {
    std::optional<int64_t> memory_bytes = {};   // of all images together; unset: one image of each model; 0: none
    absl::Duration idle = absl::Seconds(30);    // for which memory is kept
    absl::Duration shared = absl::Seconds(10);  // for which an image of an earlier version takes more callers
    MetricRegistry* metrics = &MetricRegistry::Unread();  // outlives the store
  };
  // RESOURCE_EXHAUSTED no thread.
  static absl::StatusOr<std::unique_ptr<ImageStore>> Start(Options options);
  ~ImageStore();

  // FAILED_PRECONDITION if this daemon cannot serve mirrors of the model; null: of any model.
  absl::Status CheckServes(const Model* model) const;

  // Returns the image of the version with this history and commit number, which may be still to come, once its copy has
  // begun. `model` outlives what is returned. Errors of CheckServes and PlaneImage::Begin; CANCELLED; DEADLINE_EXCEEDED
  // also while others fill the memory.
  using IsCancelled = std::function<bool()>;
  absl::StatusOr<SharedImage> Take(const Model& model, const wire::PublishedVersion& wanted, SteadyTime deadline,
                                   const IsCancelled& is_cancelled);

  // Returns true if the image of that version takes more callers, and there is no room for one of another version.
  bool IsBusyWith(const Model& model, const wire::PublishedVersion& version) const;
  // Returns the bytes of images by model, and of memory that is kept, without models that have none.
  std::map<std::string, int64_t> BytesByModel() const;

 private:
  // An image that is taken or sent.
  struct Slot {
    std::string model;
    wire::PublishedVersion version;
    int64_t bytes = 0;
    std::weak_ptr<const PlaneImage> image = {};   // null until its copy begins
    SteadyTime shared_until = SteadyTime::max();  // likewise
    std::optional<absl::Status> failure = {};     // the copy did not begin
  };
  // Memory of an image that was sent.
  struct Idle {
    std::string model;
    int64_t bytes = 0;
    std::vector<HostPlanes> ranks = {};
    SteadyTime until = {};
  };
  // Outlives the store with the last image.
  struct Books {
    // Removes a slot, and keeps its memory.
    void Free(const std::shared_ptr<Slot>& slot, std::vector<HostPlanes> memory, absl::Duration keep)
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

    mutable absl::Mutex mu;
    SteadyCondVar changed;
    std::list<std::shared_ptr<Slot>> slots ABSL_GUARDED_BY(mu);
    std::list<Idle> idle ABSL_GUARDED_BY(mu);  // the oldest first
    bool closed ABSL_GUARDED_BY(mu) = false;
  };

  explicit ImageStore(Options options) : options_(options) {}
  // Returns null if there is none that takes more callers.
  std::shared_ptr<Slot> Find(const Model& model, const wire::PublishedVersion& version) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(books_->mu);
  bool HasRoom(absl::string_view model, int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(books_->mu);
  // Takes kept memory for an image, and `others` that stand in its way, for the caller to free without the lock.
  std::vector<HostPlanes> TakeIdle(absl::string_view model, int64_t bytes, std::list<Idle>& others)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(books_->mu);
  // Takes the image of a slot of its own.
  absl::StatusOr<SharedImage> Fill(const Model& model, const std::shared_ptr<Slot>& slot,
                                   std::vector<HostPlanes> memory, SteadyTime deadline,
                                   const IsCancelled& is_cancelled);
  absl::Status Fail(const std::shared_ptr<Slot>& slot, const absl::Status& why, std::vector<HostPlanes> memory);
  // Runs on the store's thread.
  void FreeIdle();
  // Waits for memory that was kept for long enough, and takes it. Returns false at the end of the store.
  bool AwaitOver(std::list<Idle>& over);

  const Options options_;
  const std::shared_ptr<Books> books_ = std::make_shared<Books>();
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MIRRORS_IMAGE_STORE_H_
