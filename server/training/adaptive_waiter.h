// How a gather thread waits for its trainer's doorbell, for the daemon's own wakeup, and for words that a GPU may
// write.
#ifndef PARAMSHARD_SERVER_TRAINING_ADAPTIVE_WAITER_H_
#define PARAMSHARD_SERVER_TRAINING_ADAPTIVE_WAITER_H_

#include <chrono>
#include <cstdint>

#include "absl/time/time.h"
#include "common/shared_memory/futex.h"
#include "common/shared_memory/words.h"
#include "server/base/clock.h"
#include "server/training/wakeup.h"

namespace paramshard::server {

// A trainer that writes a word rings the doorbell; a GPU cannot. Where there is one, the thread therefore looks again
// by itself: all the time just after something has happened, because the next command often follows at once, and while
// copies are under way; then ever more rarely, and never when nothing is expected.
//
// The doorbell lies in memory that the trainer writes. A trainer that keeps it from ringing, or rings it all the time,
// delays its own commands alone: the daemon's wakeup and deadlines do not depend on it. Used by one thread.
class AdaptiveWaiter {
 public:
  // Says what may come besides a wakeup or the doorbell.
  enum class For : uint8_t {
    kNothing,
    kWord,   // that a trainer's GPU writes some time
    kCopies  // the end of copies under way
  };

  struct Options {
    wire::Words words;
    Wakeup* wakeup = nullptr;      // outlives the waiter
    const Clock* clock = nullptr;  // likewise; of deadlines
    bool on_gpu = false;           // whether GPUs write words of the page
    bool both_at_once = wire::CanWaitForEither();
  };

  // Must be called on the thread that will wait.
  explicit AdaptiveWaiter(const Options& options);

  // Must be called before the words are read: a ring after this call ends the next Wait.
  void PrepareWait();
  // Records that something has happened.
  void NoteEvent();
  // Waits until a wakeup rings, the deadline has come or it is time to look again.
  void Wait(For expected, SteadyTime deadline);

 private:
  // Not the deadlines' clock: spinning and napping are about the machine's own speed.
  using MachineClock = std::chrono::steady_clock;

  void Spin(MachineClock::duration most) const;
  void Sleep(absl::Duration most) const;
  void SleepOnBoth(absl::Duration most) const;
  bool Rang() const;

  const Options options_;
  uint32_t doorbell_ = 0;
  uint32_t wakeup_ = 0;
  int idle_rings_ = 0;                   // of the doorbell, since the last event
  MachineClock::time_point last_event_;  // long ago
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_ADAPTIVE_WAITER_H_
