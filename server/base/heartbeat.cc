#include "server/base/heartbeat.h"

#include <utility>

#include "server/base/stall_clock.h"
#include "server/base/steady_time.h"
#include "server/base/thread.h"

namespace paramshard::server {

absl::StatusOr<std::unique_ptr<Heartbeat>> Heartbeat::Start(std::function<void(absl::Duration)> on_stall) {
  std::unique_ptr<Heartbeat> heartbeat(new Heartbeat(std::move(on_stall)));
  absl::StatusOr<std::thread> thread = StartThread("the heartbeat", [raw = heartbeat.get()] { raw->Run(); });
  if (!thread.ok()) return thread.status();
  heartbeat->thread_ = *std::move(thread);
  return heartbeat;
}

Heartbeat::~Heartbeat() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
  StallClock::OfProcess().Pause();
}

void Heartbeat::Run() {
  StallClock& clock = StallClock::OfProcess();
  StallClock::Time::duration known = clock.stalled_time();
  absl::MutexLock lock(&mu_);
  while (!stopped_) {
    clock.Beat(&std::chrono::steady_clock::now);
    const StallClock::Time::duration added = clock.stalled_time() - std::exchange(known, clock.stalled_time());
    if (added.count() > 0) on_stall_(absl::FromChrono(added));
    changed_.WaitUntil(&mu_, SteadyNow() + StallClock::kBeat);
  }
}

}  // namespace paramshard::server
