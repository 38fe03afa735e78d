#include "server/training/adaptive_waiter.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "common/shared_memory/words.h"
#include "gtest/gtest.h"
#include "tests/server/base/manual_clock.h"

namespace paramshard::server {
namespace {

using For = AdaptiveWaiter::For;

// Value of a word that is written only by a thread that goes to sleep, or wakes.
constexpr uint32_t kNeverSlept = 7;

// A wait that does not end fails the test by its timeout.
class AdaptiveWaiterTest : public ::testing::Test {
 protected:
  AdaptiveWaiterTest()
      : page_(
            mmap(nullptr, wire::Words::SizeBytes(kCounts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        words_(page_, kCounts) {
    waits() = kNeverSlept;
  }
  ~AdaptiveWaiterTest() override { munmap(page_, wire::Words::SizeBytes(kCounts)); }

  AdaptiveWaiter::Options On(bool on_gpu) {
    return {.words = words_, .wakeup = &wakeup_, .clock = &clock_, .on_gpu = on_gpu};
  }
  std::atomic<uint32_t>& waits() const { return words_.daemon_waits().value; }
  void AwaitSleep() const {
    while (waits() != 1) std::this_thread::yield();
  }

  static constexpr wire::WordsCounts kCounts{.slots = 1, .ranks = 1, .gradient_slots = 1};
  void* const page_;
  const wire::Words words_;
  Wakeup wakeup_;
  ManualClock clock_;
};

TEST_F(AdaptiveWaiterTest, ARingAfterTheLookEndsTheWaitAtOnce) {
  for (const bool on_gpu : {false, true}) {
    for (const bool by_trainer : {false, true}) {
      AdaptiveWaiter waiter(On(on_gpu));
      waiter.PrepareWait();
      if (by_trainer) words_.Ring();
      if (!by_trainer) wakeup_.Ring();
      waiter.Wait(For::kNothing, kNever);
    }
  }
}

TEST_F(AdaptiveWaiterTest, ARingWakesASleeper) {
  for (const bool by_trainer : {false, true}) {
    waits() = kNeverSlept;
    AdaptiveWaiter waiter(On(/*on_gpu=*/false));
    waiter.PrepareWait();
    std::thread ringer([&] {
      AwaitSleep();
      if (by_trainer) words_.Ring();
      if (!by_trainer) wakeup_.Ring();
    });
    waiter.Wait(For::kNothing, kNever);
    ringer.join();
    EXPECT_EQ(waits(), 0u);
  }
}

TEST_F(AdaptiveWaiterTest, ADeadlineEndsTheWaitWithoutARing) {
  AdaptiveWaiter waiter(On(/*on_gpu=*/false));
  waiter.PrepareWait();
  waiter.Wait(For::kWord, After(clock_.Now(), absl::Milliseconds(5)));
  clock_.Advance(absl::Hours(1));
  waiter.Wait(For::kWord, clock_.Now());
  waiter.Wait(For::kWord, After(SteadyTime(), absl::Seconds(1)));
  EXPECT_EQ(waits(), 0u) << "it has slept";
}

TEST_F(AdaptiveWaiterTest, WhatAGpuWritesIsLookedForWithoutARing) {
  AdaptiveWaiter waiter(On(/*on_gpu=*/true));
  for (const For expected : {For::kWord, For::kCopies}) {
    waiter.PrepareWait();
    waiter.Wait(expected, kNever);  // nothing has happened for long
    waiter.NoteEvent();
    waiter.PrepareWait();
    waiter.Wait(expected, kNever);  // something just has
  }
  EXPECT_EQ(waits(), kNeverSlept);
}

TEST_F(AdaptiveWaiterTest, JustAfterAnEventNothingSleeps) {
  AdaptiveWaiter waiter(On(/*on_gpu=*/true));
  waiter.NoteEvent();
  waiter.PrepareWait();
  waiter.Wait(For::kNothing, kNever);
  EXPECT_EQ(waits(), kNeverSlept);
}

TEST_F(AdaptiveWaiterTest, WhereNothingIsExpectedOfAGpuTheThreadSleeps) {
  AdaptiveWaiter waiter(On(/*on_gpu=*/true));
  waiter.PrepareWait();
  waiter.Wait(For::kNothing, After(clock_.Now(), absl::Milliseconds(1)));
  EXPECT_EQ(waits(), 0u);
}

// --- Trainers that mean harm ---

// Moves sleepers on the doorbell to where nothing wakes them. Returns how many.
long MoveSleepers(std::atomic<uint32_t>& doorbell, std::atomic<uint32_t>& elsewhere) {
  return syscall(SYS_futex, &doorbell, FUTEX_CMP_REQUEUE, 0, 1, &elsewhere, doorbell.load());
}

TEST_F(AdaptiveWaiterTest, TheDaemonIsHeardWhenItsThreadHasBeenMovedToAnotherWord) {
  if (!wire::CanWaitForEither()) GTEST_SKIP() << "needs futex_waitv, of Linux 5.16";
  AdaptiveWaiter waiter(On(/*on_gpu=*/false));
  waiter.PrepareWait();
  std::thread trainer([&] {
    // The spare end of the page; its count of sleepers says when this one is among them.
    while (MoveSleepers(words_.doorbell().value, words_.filled(0).value) != 1) std::this_thread::yield();
    waits() = 0;
    wakeup_.Ring();
  });
  waiter.Wait(For::kNothing, kNever);
  trainer.join();
}

TEST_F(AdaptiveWaiterTest, TheDaemonIsHeardWhenTheTrainerDeniesThatItsThreadSleeps) {
  std::atomic<bool> over{false};
  std::thread trainer([&] {
    while (!over) waits() = 0;
  });
  for (int i = 0; i < 100; ++i) {
    AdaptiveWaiter waiter(On(/*on_gpu=*/false));
    waiter.PrepareWait();
    std::thread daemon([&] { wakeup_.Ring(); });
    waiter.Wait(For::kNothing, kNever);
    daemon.join();
  }
  over = true;
  trainer.join();
}

TEST_F(AdaptiveWaiterTest, WhereAThreadCannotSleepOnBothTheDaemonIsHeardAfterASlice) {
  AdaptiveWaiter::Options options = On(/*on_gpu=*/false);
  options.both_at_once = false;
  AdaptiveWaiter waiter(options);
  std::atomic<bool> said{false};
  std::thread daemon([&] {
    AwaitSleep();
    said = true;
    wakeup_.Ring();
  });
  while (!said) {
    waiter.PrepareWait();
    waiter.Wait(For::kNothing, kNever);
  }
  daemon.join();
}

TEST_F(AdaptiveWaiterTest, ADoorbellThatRingsWithoutEndIsListenedToOnceInAPause) {
  AdaptiveWaiter waiter(On(/*on_gpu=*/false));
  const auto ring_and_wait = [&] {
    waits() = kNeverSlept;
    words_.Ring();
    waiter.PrepareWait();
    words_.Ring();
    waiter.Wait(For::kNothing, kNever);
    return waits() != kNeverSlept;
  };
  int listened = 0;
  while (ring_and_wait()) ++listened;
  EXPECT_GT(listened, 100) << "honest trainers ring for others, too";
  EXPECT_FALSE(ring_and_wait());
  wakeup_.Ring();
  waiter.Wait(For::kNothing, kNever);
  waiter.NoteEvent();
  EXPECT_TRUE(ring_and_wait()) << "something has happened";
}

}  // namespace
}  // namespace paramshard::server
