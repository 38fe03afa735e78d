#include "server/mirrors/image_store.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "server/mirrors/plane_versions.h"

namespace paramshard::server {
namespace {

// A caller that waits asks this often if its own caller is gone.
constexpr absl::Duration kLook = absl::Milliseconds(100);

}  // namespace

absl::Status ImageStore::CheckServes(const Model* model) const {
  if (memory_bytes_ == 0) {
    return absl::FailedPreconditionError("mirrors: this daemon serves none: --mirror-image-memory is 0");
  }
  if (model == nullptr) return absl::OkStatus();
  const std::string& name = model->spec().name;
  const int64_t bytes = PlaneImageBytes(model->committed());
  if (!memory_bytes_.has_value() || bytes <= *memory_bytes_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("mirror ", name, ": an image takes ", bytes,
                                                    " bytes, --mirror-image-memory allows ", *memory_bytes_));
}

std::shared_ptr<ImageStore::Slot> ImageStore::Find(absl::string_view model,
                                                   const wire::PublishedVersion& version) const {
  books_->mu.AssertHeld();
  const auto found = absl::c_find_if(books_->slots, [&](const std::shared_ptr<Slot>& slot) {
    return slot->model == model && IsSameState(slot->version, version);
  });
  return found == books_->slots.end() ? nullptr : *found;
}

bool ImageStore::HasRoom(absl::string_view model, int64_t bytes) const {
  books_->mu.AssertHeld();
  int64_t used = 0;
  for (const std::shared_ptr<Slot>& slot : books_->slots) {
    if (!memory_bytes_.has_value() && slot->model == model) return false;
    used += slot->bytes;
  }
  return !memory_bytes_.has_value() || used + bytes <= *memory_bytes_;
}

absl::StatusOr<std::shared_ptr<const PlaneImage>> ImageStore::Take(const Model& model,
                                                                   const wire::PublishedVersion& wanted,
                                                                   SteadyTime deadline,
                                                                   const IsCancelled& is_cancelled) {
  RETURN_IF_ERROR(CheckServes(&model));
  const std::string& name = model.spec().name;
  const int64_t bytes = PlaneImageBytes(model.committed());
  std::shared_ptr<Slot> joined;
  {
    absl::MutexLock lock(&books_->mu);
    while (true) {
      // A slot that was joined may have failed, and is no longer in the list.
      if (joined != nullptr && joined->failure.has_value()) return *joined->failure;
      if (joined == nullptr) joined = Find(name, wanted);
      if (joined != nullptr) {
        if (std::shared_ptr<const PlaneImage> image = joined->image.lock()) return image;
        // It was sent, and its memory is about to go.
        if (!absl::c_linear_search(books_->slots, joined)) joined = nullptr;
      }
      if (joined == nullptr && HasRoom(name, bytes)) break;
      if (is_cancelled()) return absl::CancelledError(absl::StrCat("mirror ", name, ": the caller is gone"));
      if (TimeLeft(deadline) == absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            absl::StrCat("mirror ", name, ": timed out waiting for images that other mirrors receive"));
      }
      books_->changed.WaitUntil(&books_->mu, std::min(deadline, SteadyDeadline(kLook)));
    }
    joined = std::make_shared<Slot>(Slot{.model = name, .version = wanted, .bytes = bytes});
    books_->slots.push_back(joined);
  }
  return Fill(model, joined, deadline, is_cancelled);
}

absl::StatusOr<std::shared_ptr<const PlaneImage>> ImageStore::Fill(const Model& model,
                                                                   const std::shared_ptr<Slot>& slot,
                                                                   SteadyTime deadline,
                                                                   const IsCancelled& is_cancelled) {
  absl::StatusOr<PlaneImage> taken = TakePlaneImage(model.committed(), slot->version, deadline, is_cancelled);
  const auto free = [books = books_, slot](const PlaneImage* image) {
    delete image;  // the memory is free before others take it
    absl::MutexLock lock(&books->mu);
    slot->image.reset();  // which would keep this deleter, and so the slot
    books->slots.remove(slot);
    books->changed.SignalAll();
  };
  if (!taken.ok()) {
    absl::MutexLock lock(&books_->mu);
    // Callers that share the image are not gone, and may ask again.
    const auto code = absl::IsCancelled(taken.status()) ? absl::StatusCode::kAborted : taken.status().code();
    slot->failure = absl::Status(code, absl::StrCat("mirror ", slot->model, ": ", taken.status().message()));
    books_->slots.remove(slot);
    books_->changed.SignalAll();
    return *slot->failure;
  }
  std::shared_ptr<const PlaneImage> image(new PlaneImage(*std::move(taken)), free);
  absl::MutexLock lock(&books_->mu);
  slot->image = image;
  books_->changed.SignalAll();
  return image;
}

bool ImageStore::IsBusyWith(const Model& model, const wire::PublishedVersion& version) const {
  const int64_t bytes = PlaneImageBytes(model.committed());
  absl::MutexLock lock(&books_->mu);
  return Find(model.spec().name, version) != nullptr && !HasRoom(model.spec().name, bytes);
}

std::map<std::string, int64_t> ImageStore::BytesByModel() const {
  absl::MutexLock lock(&books_->mu);
  std::map<std::string, int64_t> bytes;
  for (const std::shared_ptr<Slot>& slot : books_->slots) bytes[slot->model] += slot->bytes;
  return bytes;
}

}  // namespace paramshard::server
