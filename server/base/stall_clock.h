// A clock that stops while the process is stalled, which it measures from the beats of one of its threads.
#ifndef PARAMSHARD_SERVER_BASE_STALL_CLOCK_H_
#define PARAMSHARD_SERVER_BASE_STALL_CLOCK_H_

#include <atomic>
#include <chrono>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace paramshard::server {

// Without beats the process did not run: it was stopped, its container frozen or its machine suspended. The first call
// of Now() after that notices it, so that no deadline passes before. Thread-safe.
//
//   StallClock clock;
//   clock.Beat(machine);                 again and again, from a thread
//   const auto now = clock.Now(machine)  does not move while the process is stalled
class StallClock {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using MachineClock = absl::FunctionRef<Time()>;
  static constexpr std::chrono::milliseconds kBeat{100};
  // A machine under load may leave out some beats.
  static constexpr std::chrono::milliseconds kStall = 5 * kBeat;

  // Returns the process's clock, which SteadyNow uses. Never destroyed.
  static StallClock& OfProcess();

  void Beat(MachineClock machine);
  // Stops counting until the next beat.
  void Pause();
  // Returns the machine's time, less the time that the process was stalled.
  Time Now(MachineClock machine);
  // Total time that the process was stalled.
  Time::duration stalled_time() const { return Time::duration(stalled_time_.load(std::memory_order_acquire)); }

 private:
  using Ticks = Time::rep;
  bool IsStalledAt(Ticks now) const;
  void Count(Ticks now) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::atomic<Ticks> last_beat_ = 0;  // 0 before the first one; written under mu_
  std::atomic<Ticks> stalled_time_ = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_STALL_CLOCK_H_
