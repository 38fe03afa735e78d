#include "server/last_resort.h"

#include <cstdlib>
#include <utility>

#include "absl/status/statusor.h"
#include "server/base/steady_time.h"
#include "server/base/thread.h"
#include "server/exit_codes.h"
#include "server/log/log.h"

namespace paramshard::server {

LastResort::LastResort(absl::Duration patience) {
  absl::StatusOr<std::thread> thread = StartThread("last resort", [this, patience] { Await(patience); });
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

void LastResort::Await(absl::Duration patience) {
  const SteadyTime deadline = SteadyDeadline(patience);
  absl::MutexLock lock(&mu_);
  while (!has_ended_) {
    if (!changed_.WaitUntil(&mu_, deadline) || has_ended_) continue;
    Log(LogLevel::kError, "stopping without an end", {{"waited", absl::FormatDuration(patience)}});
    FlushLog(kFlushTimeout);
    std::_Exit(kExitStuck);
  }
}

}  // namespace paramshard::server
