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

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/shared_memory/publication_page.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"
#include "server/models/model.h"
#include "server/state/plane_image.h"

namespace paramshard::server {

// Takes images, and bounds their memory. An image lives as long as somebody sends it; callers that want the version of
// an image share it. While images fill the memory, others wait for the end of these transfers. Thread-safe; images may
// outlive the store.
class ImageStore {
 public:
  // `memory_bytes` bounds all images together; unset: one image of each model; 0: none.
  explicit ImageStore(std::optional<int64_t> memory_bytes) : memory_bytes_(memory_bytes) {}

  // FAILED_PRECONDITION if this daemon cannot serve mirrors of the model; null: of any model.
  absl::Status CheckServes(const Model* model) const;

  // Returns the image of the version with this history and commit number, which may be still to come. Errors of
  // CheckServes and TakePlaneImage; CANCELLED; DEADLINE_EXCEEDED also while others fill the memory.
  using IsCancelled = std::function<bool()>;
  absl::StatusOr<std::shared_ptr<const PlaneImage>> Take(const Model& model, const wire::PublishedVersion& wanted,
                                                         SteadyTime deadline, const IsCancelled& is_cancelled);

  // Returns true if the image of that version is being taken or sent, and there is no room for one of another version.
  bool IsBusyWith(const Model& model, const wire::PublishedVersion& version) const;
  // Returns the bytes of images by model, without models that have none.
  std::map<std::string, int64_t> BytesByModel() const;

 private:
  // An image that is taken or sent.
  struct Slot {
    std::string model;
    wire::PublishedVersion version;
    int64_t bytes = 0;
    std::weak_ptr<const PlaneImage> image = {};  // null while it is taken
    std::optional<absl::Status> failure = {};
  };
  // Outlives the store with the last image.
  struct Books {
    mutable absl::Mutex mu;
    SteadyCondVar changed;
    std::list<std::shared_ptr<Slot>> slots ABSL_GUARDED_BY(mu);
  };

  // Returns null if there is none.
  std::shared_ptr<Slot> Find(absl::string_view model, const wire::PublishedVersion& version) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(books_->mu);
  bool HasRoom(absl::string_view model, int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(books_->mu);
  // Takes the image of a slot of its own.
  absl::StatusOr<std::shared_ptr<const PlaneImage>> Fill(const Model& model, const std::shared_ptr<Slot>& slot,
                                                         SteadyTime deadline, const IsCancelled& is_cancelled);

  const std::optional<int64_t> memory_bytes_;
  const std::shared_ptr<Books> books_ = std::make_shared<Books>();
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MIRRORS_IMAGE_STORE_H_
