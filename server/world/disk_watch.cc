#include "server/world/disk_watch.h"

#include "kernels/base/status_macros.h"
#include "server/base/thread.h"
#include "server/observe/log.h"

namespace paramshard::server {

absl::StatusOr<std::unique_ptr<DiskWatch>> DiskWatch::Start(std::string what, absl::Duration timeout) {
  std::unique_ptr<DiskWatch> watch(new DiskWatch(std::move(what), timeout));
  ASSIGN_OR_RETURN(watch->thread_, StartThread("the watch on a disk", [raw = watch.get()] { raw->Run(); }));
  return watch;
}

DiskWatch::~DiskWatch() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

// Calls do not wake the thread: most end before it would look.
void DiskWatch::Run() {
  absl::MutexLock lock(&mu_);
  while (!stopped_) {
    const SteadyTime next = SteadyDeadline(timeout_);
    while (!stopped_ && !changed_.WaitUntil(&mu_, next)) {
    }
    if (stopped_ || !begin_.has_value()) continue;
    const absl::Duration lasts = absl::FromChrono(SteadyNow() - *begin_);
    if (lasts < timeout_) continue;
    Log(LogLevel::kWarning, "a disk does not answer",
        {{"what", what_}, {"for", absl::FormatDuration(absl::Trunc(lasts, absl::Seconds(1)))}});
  }
}

}  // namespace paramshard::server
