#include "python/bindings/shared_model.h"

namespace paramshard::python {

std::shared_ptr<SharedModel> SharedModel::Create(Model model) {
  // Objects of Python release it with the interpreter's lock. Detaching waits for other ranks, and other threads go on
  // meanwhile.
  return std::shared_ptr<SharedModel>(new SharedModel(std::move(model)),
                                      [](SharedModel* last) { Unlocked([last] { delete last; }); });
}

SharedModel::~SharedModel() {
  DestroyDropped();
  if (model_.has_value()) model_->Detach().IgnoreError();
}

absl::Status SharedModel::Closed() { return absl::FailedPreconditionError("model: model was closed"); }

absl::Status SharedModel::CheckCaller() const {
  if (absl::Status status = owner_.Check("model"); !status.ok()) return status;
  if (!HasTurn()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "model: a signal handler cannot call the model while another call of its thread is in progress");
}

void SharedModel::Drop(std::shared_ptr<void> handle) {
  if (!owner_.IsCaller()) return internal::KeepForEver(new std::shared_ptr<void>(std::move(handle)));
  {
    const std::lock_guard<std::mutex> lock(dropped_mu_);
    dropped_.push_back(std::move(handle));
  }
  // The holder of the turn destroys it.
  if (!HasTurn()) const Turn turn(*this, std::try_to_lock);
}

void SharedModel::DestroyDropped() {
  std::vector<std::shared_ptr<void>> dropped;
  const std::lock_guard<std::mutex> lock(dropped_mu_);
  dropped.swap(dropped_);
  dropped.clear();
}

absl::Status SharedModel::Close() {
  return Run([&] {
    if (!model_.has_value()) return absl::OkStatus();
    const absl::Status detached = model_->Detach();
    model_.reset();
    return detached;
  });
}

}  // namespace paramshard::python
