#include "server/process/exit_watchdog.h"

#include <cstdlib>
#include <utility>

#include "absl/status/statusor.h"
#include "server/base/steady_time.h"
#include "server/base/thread.h"
#include "server/observe/log.h"

namespace paramshard::server {

ExitWatchdog::ExitWatchdog(absl::Duration timeout, int exit_code) {
  absl::StatusOr<std::thread> thread =
      StartThread("exit watchdog", [this, timeout, exit_code] { Await(timeout, exit_code); });
  if (thread.ok()) thread_ = *std::move(thread);
}

ExitWatchdog::~ExitWatchdog() {
  {
    absl::MutexLock lock(&mu_);
    has_ended_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void ExitWatchdog::Await(absl::Duration timeout, int exit_code) {
  const SteadyTime deadline = SteadyDeadline(timeout);
  absl::MutexLock lock(&mu_);
  while (!has_ended_) {
    if (!changed_.WaitUntil(&mu_, deadline) || has_ended_) continue;
    Log(LogLevel::kError, "shutdown timed out", {{"waited", absl::FormatDuration(timeout)}});
    FlushLog(kFlushTimeout);
    std::_Exit(exit_code);
  }
}

}  // namespace paramshard::server
