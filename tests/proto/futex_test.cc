#include "proto/wire/futex.h"

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace paramshard::wire {
namespace {

TEST(FutexTest, AWordThatHasChangedIsNotWaitedFor) {
  const std::atomic<uint32_t> word{2};
  const absl::Time start = absl::Now();
  FutexWait(word, 1, absl::Minutes(1));
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
}

TEST(FutexTest, TheWaitEndsAtTheTimeout) {
  const std::atomic<uint32_t> word{1};
  FutexWait(word, 1, absl::Milliseconds(1));
  FutexWait(word, 1, absl::ZeroDuration());
  FutexWait(word, 1, absl::Seconds(-1));
}

TEST(FutexTest, AWakeEndsAWaitOfAnyLength) {
  std::atomic<uint32_t> word{0};
  std::thread waiter([&] {
    while (word.load() == 0) FutexWait(word, 0, absl::InfiniteDuration());
  });
  word.store(1);
  FutexWake(word);
  waiter.join();
}

}  // namespace
}  // namespace paramshard::wire
