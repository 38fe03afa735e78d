#include "server/base/heartbeat.h"

#include <utility>

#include "server/base/standstill_book.h"
#include "server/base/steady_time.h"
#include "server/base/thread.h"

namespace paramshard::server {

absl::StatusOr<std::unique_ptr<Heartbeat>> Heartbeat::Start(std::function<void(absl::Duration)> on_standstill) {
  std::unique_ptr<Heartbeat> heartbeat(new Heartbeat(std::move(on_standstill)));
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
  StandstillBook::OfProcess().Pause();
}

void Heartbeat::Run() {
  StandstillBook& book = StandstillBook::OfProcess();
  StandstillBook::Time::duration known = book.stood_still();
  absl::MutexLock lock(&mu_);
  while (!stopped_) {
    book.Beat(&std::chrono::steady_clock::now);
    const StandstillBook::Time::duration added = book.stood_still() - std::exchange(known, book.stood_still());
    if (added.count() > 0) on_standstill_(absl::FromChrono(added));
    changed_.WaitUntil(&mu_, SteadyNow() + StandstillBook::kBeat);
  }
}

}  // namespace paramshard::server
