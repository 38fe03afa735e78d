#include "server/checkpoints/restore_write.h"

#include <thread>

#include "absl/status/statusor.h"
#include "server/base/thread.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kLookInterval = absl::Milliseconds(250);

}  // namespace

absl::Status RestoreWrite::Run(Restorer& restorer, absl::FunctionRef<void()> look, const absl::Status& late) {
  {
    absl::MutexLock lock(&mu_);
    writing_ = &restorer;
    if (why_.has_value()) restorer.Cancel();
  }
  // If no thread can be started, the write goes on without it: the waits before and after it still have the deadline.
  absl::StatusOr<std::thread> watch = StartThread("the watch over a restore", [&] { Watch(look, late); });
  options_.before_rows();
  const absl::Status status = restorer.Write();
  std::optional<absl::Status> why;
  {
    absl::MutexLock lock(&mu_);
    writing_ = nullptr;
    why = why_;
    changed_.SignalAll();
  }
  if (watch.ok()) watch->join();
  look();
  return absl::IsCancelled(status) && why.has_value() ? *why : status;
}

absl::Status RestoreWrite::CheckGoesOn(const absl::Status& late) {
  StopIfLate(late);
  absl::MutexLock lock(&mu_);
  return why_.value_or(absl::OkStatus());
}

void RestoreWrite::Stop(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  if (why_.has_value()) return;
  why_ = why;
  if (writing_ != nullptr) writing_->Cancel();
}

void RestoreWrite::StopIfLate(const absl::Status& late) {
  if (Until(options_.deadline, options_.clock->Now()) <= absl::ZeroDuration()) Stop(late);
}

void RestoreWrite::Watch(absl::FunctionRef<void()> look, const absl::Status& late) {
  while (true) {
    StopIfLate(late);
    look();
    const SteadyTime next = SteadyDeadline(kLookInterval);
    absl::MutexLock lock(&mu_);
    while (writing_ != nullptr && !changed_.WaitUntil(&mu_, next)) {
    }
    if (writing_ == nullptr) return;
  }
}

}  // namespace paramshard::server
