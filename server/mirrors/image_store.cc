#include "server/mirrors/image_store.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"
#include "server/mirrors/plane_versions.h"

namespace paramshard::server {
namespace {

// A caller that waits asks this often if its own caller is gone.
constexpr absl::Duration kLook = absl::Milliseconds(100);

bool IsPassed(const Model& model, const wire::PublishedVersion& version) {
  const std::optional<wire::PublishedVersion> present = model.publication().last_published();
  return present.has_value() &&
         (present->history() != version.history() || present->commit_number > version.commit_number);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ImageStore>> ImageStore::Start(Options options) {
  std::unique_ptr<ImageStore> store(new ImageStore(options));
  ASSIGN_OR_RETURN(store->thread_, StartThread("images for mirrors", [self = store.get()] { self->FreeIdle(); }));
  return store;
}

ImageStore::~ImageStore() {
  {
    absl::MutexLock lock(&books_->mu);
    books_->closed = true;
    books_->idle.clear();
    books_->changed.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void ImageStore::FreeIdle() {
  // To free gigabytes takes a while, in which callers need the lock.
  for (std::list<Idle> over; AwaitOver(over);) over.clear();
}

bool ImageStore::AwaitOver(std::list<Idle>& over) {
  absl::MutexLock lock(&books_->mu);
  std::list<Idle>& idle = books_->idle;
  while (!books_->closed) {
    while (!idle.empty() && idle.front().until <= SteadyNow()) over.splice(over.end(), idle, idle.begin());
    if (!over.empty()) return true;
    if (idle.empty()) {
      books_->changed.Wait(&books_->mu);
    } else {
      books_->changed.WaitUntil(&books_->mu, idle.front().until);
    }
  }
  return false;
}

absl::Status ImageStore::CheckServes(const Model* model) const {
  if (options_.memory_bytes == 0) {
    return absl::FailedPreconditionError("mirrors: this daemon serves none: --mirror-image-memory is 0");
  }
  if (model == nullptr) return absl::OkStatus();
  const std::string& name = model->spec().name;
  const int64_t bytes = PlaneImageBytes(model->committed());
  if (!options_.memory_bytes.has_value() || bytes <= *options_.memory_bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("mirror ", name, ": an image takes ", bytes,
                                                    " bytes, --mirror-image-memory allows ", *options_.memory_bytes));
}

std::shared_ptr<ImageStore::Slot> ImageStore::Find(const Model& model, const wire::PublishedVersion& version) const {
  books_->mu.AssertHeld();
  const auto found = absl::c_find_if(books_->slots, [&](const std::shared_ptr<Slot>& slot) {
    return slot->model == model.spec().name && IsSameState(slot->version, version);
  });
  if (found == books_->slots.end()) return nullptr;
  return IsPassed(model, version) && (*found)->shared_until < SteadyNow() ? nullptr : *found;
}

bool ImageStore::HasRoom(absl::string_view model, int64_t bytes) const {
  books_->mu.AssertHeld();
  int64_t used = 0;
  for (const std::shared_ptr<Slot>& slot : books_->slots) {
    if (!options_.memory_bytes.has_value() && slot->model == model) return false;
    used += slot->bytes;
  }
  return !options_.memory_bytes.has_value() || used + bytes <= *options_.memory_bytes;
}

std::vector<HostPlanes> ImageStore::TakeIdle(absl::string_view model, int64_t bytes, std::list<Idle>& others) {
  books_->mu.AssertHeld();
  std::vector<HostPlanes> memory;
  std::list<Idle>& idle = books_->idle;
  const auto found = absl::c_find_if(idle, [&](const Idle& kept) { return kept.model == model; });
  if (found != idle.end()) {
    memory = std::move(found->ranks);
    idle.erase(found);
  }
  int64_t used = bytes;
  for (const std::shared_ptr<Slot>& slot : books_->slots) used += slot->bytes;
  for (const Idle& kept : idle) used += kept.bytes;
  while (options_.memory_bytes.has_value() && used > *options_.memory_bytes && !idle.empty()) {
    used -= idle.front().bytes;
    others.splice(others.end(), idle, idle.begin());
  }
  return memory;
}

absl::StatusOr<SharedImage> ImageStore::Take(const Model& model, const wire::PublishedVersion& wanted,
                                             SteadyTime deadline, const IsCancelled& is_cancelled) {
  RETURN_IF_ERROR(CheckServes(&model));
  const std::string& name = model.spec().name;
  const int64_t bytes = PlaneImageBytes(model.committed());
  std::shared_ptr<Slot> joined;
  std::vector<HostPlanes> memory;
  std::list<Idle> others;
  {
    absl::MutexLock lock(&books_->mu);
    while (true) {
      // A slot that was joined may have failed, and is no longer in the list.
      if (joined != nullptr && joined->failure.has_value()) {
        // The caller that took it may have waited for less time.
        const bool may_retry = absl::IsDeadlineExceeded(*joined->failure) && TimeLeft(deadline) > absl::ZeroDuration();
        if (!may_retry) return *joined->failure;
        joined = nullptr;
      }
      if (joined == nullptr) joined = Find(model, wanted);
      if (joined != nullptr) {
        if (std::shared_ptr<const PlaneImage> image = joined->image.lock()) return SharedImage(std::move(image), {});
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
    memory = TakeIdle(name, bytes, others);
    joined = std::make_shared<Slot>(Slot{.model = name, .version = wanted, .bytes = bytes});
    books_->slots.push_back(joined);
  }
  others.clear();
  return Fill(model, joined, std::move(memory), deadline, is_cancelled);
}

absl::StatusOr<SharedImage> ImageStore::Fill(const Model& model, const std::shared_ptr<Slot>& slot,
                                             std::vector<HostPlanes> memory, SteadyTime deadline,
                                             const IsCancelled& is_cancelled) {
  absl::StatusOr<std::unique_ptr<PlaneImage>> begun =
      PlaneImage::Begin(model.committed(), slot->version, deadline, is_cancelled, memory);
  if (!begun.ok()) return Fail(slot, begun.status(), std::move(memory));
  const auto free = [books = books_, slot, idle = options_.idle](PlaneImage* image) {
    std::vector<HostPlanes> ranks = std::move(*image).Release();
    delete image;
    absl::MutexLock lock(&books->mu);
    slot->image.reset();  // which would keep this deleter, and so the slot
    books->Free(slot, std::move(ranks), idle);
  };
  const std::shared_ptr<PlaneImage> image(begun->release(), free);
  absl::StatusOr<std::thread> copying =
      StartThread("an image for mirrors", [image, &state = model.committed(), metrics = options_.metrics] {
        const SteadyTime begin = SteadyNow();
        if (image->Copy(state).ok()) metrics->Observe(Metric::kMirrorImage, SteadyNow() - begin);
      });
  if (!copying.ok()) return Fail(slot, copying.status(), {});
  SharedImage shared(image, *std::move(copying));
  absl::MutexLock lock(&books_->mu);
  slot->image = image;
  slot->shared_until = SteadyDeadline(options_.shared);
  books_->changed.SignalAll();
  return shared;
}

absl::Status ImageStore::Fail(const std::shared_ptr<Slot>& slot, const absl::Status& why,
                              std::vector<HostPlanes> memory) {
  if (absl::IsResourceExhausted(why)) memory.clear();
  // Callers that share the image are not gone, and may ask again.
  const auto code = absl::IsCancelled(why) ? absl::StatusCode::kAborted : why.code();
  absl::MutexLock lock(&books_->mu);
  slot->failure = absl::Status(code, absl::StrCat("mirror ", slot->model, ": ", why.message()));
  books_->Free(slot, std::move(memory), options_.idle);
  return *slot->failure;
}

void ImageStore::Books::Free(const std::shared_ptr<Slot>& slot, std::vector<HostPlanes> memory, absl::Duration keep) {
  slots.remove(slot);
  if (!closed && !memory.empty()) idle.push_back({slot->model, slot->bytes, std::move(memory), SteadyDeadline(keep)});
  changed.SignalAll();
}

bool ImageStore::IsBusyWith(const Model& model, const wire::PublishedVersion& version) const {
  const int64_t bytes = PlaneImageBytes(model.committed());
  absl::MutexLock lock(&books_->mu);
  return Find(model, version) != nullptr && !HasRoom(model.spec().name, bytes);
}

std::map<std::string, int64_t> ImageStore::BytesByModel() const {
  absl::MutexLock lock(&books_->mu);
  std::map<std::string, int64_t> bytes;
  for (const std::shared_ptr<Slot>& slot : books_->slots) bytes[slot->model] += slot->bytes;
  for (const Idle& kept : books_->idle) bytes[kept.model] += kept.bytes;
  return bytes;
}

}  // namespace paramshard::server
