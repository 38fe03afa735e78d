// A model that several objects of Python hold, on any thread.
#ifndef PARAMSHARD_PYTHON_BINDINGS_SHARED_MODEL_H_
#define PARAMSHARD_PYTHON_BINDINGS_SHARED_MODEL_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/internal/owner_process.h"
#include "python/bindings/calls.h"

namespace paramshard::python {

// The client library takes one thread at a time for a Model and its handles. Python calls from many threads, drops
// references on any, and runs signal handlers inside a wait. So each call takes a turn, without the interpreter's lock.
// The holder of the turn destroys dropped handles, and no thread waits for that.
class SharedModel {
 public:
  // The end of the last reference detaches.
  static std::shared_ptr<SharedModel> Create(Model model);
  ~SharedModel();
  SharedModel(const SharedModel&) = delete;
  SharedModel& operator=(const SharedModel&) = delete;

  // Takes a turn for `call`, which returns a Status or a StatusOr. FAILED_PRECONDITION in a handler that runs inside a
  // turn of the same thread, and in a forked child. With the interpreter's lock, which `call` does not have.
  template <typename Call>
  auto Run(Call call) -> decltype(call()) {
    if (absl::Status status = CheckCaller(); !status.ok()) return status;
    return Unlocked([&]() -> decltype(call()) {
      const Turn turn(*this);
      return call();
    });
  }
  // Run() with the Model. FAILED_PRECONDITION once it is closed.
  template <typename Call>
  auto WithModel(Call call) -> decltype(call(std::declval<Model&>())) {
    return Run([&]() -> decltype(call(*model_)) {
      if (!model_.has_value()) return Closed();
      return call(*model_);
    });
  }

  // Destroys a handle at once, or when the present turn ends. Never waits.
  void Drop(std::shared_ptr<void> handle);

  // Detaches; handles that are left become unusable. Idempotent.
  absl::Status Close();

  // See Model::KeepMapped: an array of the memory holds the result. Errors of WithModel.
  absl::StatusOr<std::shared_ptr<const void>> KeepMapped() {
    return WithModel([](Model& model) -> absl::StatusOr<std::shared_ptr<const void>> { return model.KeepMapped(); });
  }

 private:
  // Holds the mutex, and destroys dropped handles at its beginning and at its end.
  class Turn {
   public:
    explicit Turn(SharedModel& shared) : shared_(shared), lock_(shared.mu_) { Begin(); }
    Turn(SharedModel& shared, std::try_to_lock_t how) : shared_(shared), lock_(shared.mu_, how) {
      if (taken()) Begin();
    }
    ~Turn() {
      if (!taken()) return;
      shared_.DestroyDropped();
      shared_.holder_ = std::thread::id();
    }
    bool taken() const { return lock_.owns_lock(); }

   private:
    void Begin() {
      shared_.holder_ = std::this_thread::get_id();
      shared_.DestroyDropped();
    }

    SharedModel& shared_;
    std::unique_lock<std::mutex> lock_;
  };

  explicit SharedModel(Model model) : model_(std::move(model)) {}
  static absl::Status Closed();
  absl::Status CheckCaller() const;
  bool HasTurn() const { return holder_ == std::this_thread::get_id(); }
  void DestroyDropped();

  const internal::OwnerProcess owner_;

  std::mutex mu_;  // the turn
  std::atomic<std::thread::id> holder_ = std::thread::id();
  std::optional<Model> model_;  // guarded by the turn

  std::mutex dropped_mu_;
  std::vector<std::shared_ptr<void>> dropped_;  // guarded by dropped_mu_
};

// A handle of client.h that Python holds, until it is released or given away. `Handle` moves.
template <typename Handle>
class Held {
 public:
  Held(std::shared_ptr<SharedModel> model, Handle handle)
      : model_(std::move(model)), handle_(std::make_shared<Handle>(std::move(handle))) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { Release(); }

  const std::shared_ptr<SharedModel>& model() const { return model_; }
  bool is_held() const { return handle_ != nullptr; }

  // Takes a turn. FAILED_PRECONDITION once it was released, or its model is closed.
  template <typename Call>
  auto Run(Call call) -> decltype(call(std::declval<Handle&>())) {
    // A reference of its own: another thread may release it meanwhile.
    std::shared_ptr<Handle> handle = handle_;
    if (handle == nullptr) return absl::FailedPreconditionError("handle was released");
    auto result = model_->WithModel([&](Model&) -> decltype(call(*handle)) { return call(*handle); });
    model_->Drop(std::move(handle));
    return result;
  }

  void Release() {
    if (handle_ != nullptr) model_->Drop(std::exchange(handle_, nullptr));
  }

 private:
  const std::shared_ptr<SharedModel> model_;
  std::shared_ptr<Handle> handle_;  // guarded by the interpreter's lock
};

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_SHARED_MODEL_H_
