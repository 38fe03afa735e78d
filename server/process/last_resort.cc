#include "server/process/last_resort.h"

#include <cstdlib>
#include <utility>

#include "absl/status/statusor.h"
#include "server/base/steady_time.h"
#include "server/base/thread.h"
#include "server/observe/log.h"

namespace paramshard::server {

LastResort::LastResort(absl::Duration patience, int exit_code) {
  absl::StatusOr<std::thread> thread =
      StartThread("last resort", [this, patience, exit_code] { Await(patience, exit_code); });
  if (thread.ok()) thread_ = *std::move(thread);
}

LastResort::~LastResort() {
  {
    absl::MutexLock lock(&mu_);
    has_ended_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void LastResort::Await(absl::Duration patience, int exit_code) {
  const SteadyTime deadline = SteadyDeadline(patience);
  absl::MutexLock lock(&mu_);
  while (!has_ended_) {
    if (!changed_.WaitUntil(&mu_, deadline) || has_ended_) continue;
    Log(LogLevel::kError, "shutdown timed out", {{"waited", absl::FormatDuration(patience)}});
    FlushLog(kFlushTimeout);
    std::_Exit(exit_code);
  }
}

}  // namespace paramshard::server
