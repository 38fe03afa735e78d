#include "common/shared_memory/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace paramshard::wire {
namespace {

// Moves a sleeper of one word to the other, and returns the number of moved sleepers.
long Requeue(const std::atomic<uint32_t>& from, const std::atomic<uint32_t>& to) {
  return syscall(SYS_futex, &from, FUTEX_CMP_REQUEUE, 0, 1, &to, from.load());
}

void AwaitSleeper(const std::atomic<uint32_t>& word) {
  while (Requeue(word, word) != 1) std::this_thread::yield();
}

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
  AwaitSleeper(word);
  word.store(1);
  FutexWake(word);
  waiter.join();
}

class EitherTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!CanWaitForEither()) GTEST_SKIP() << "needs futex_waitv, of Linux 5.16";
  }
  // Sleeps until `over_`, also after wakes without a reason.
  void StartSleeper() {
    sleeper_ = std::thread([this] {
      while (!over_) FutexWaitForEither(shared_, 0, private_, 0, absl::InfiniteDuration());
    });
  }

  std::atomic<uint32_t> shared_{0}, private_{0}, elsewhere_{0};
  std::atomic<bool> over_{false};
  std::thread sleeper_;
};

TEST_F(EitherTest, AChangeOfEitherIsNotWaitedFor) {
  const std::atomic<uint32_t> changed{1};
  FutexWaitForEither(changed, 0, private_, 0, absl::InfiniteDuration());
  FutexWaitForEither(shared_, 0, changed, 0, absl::InfiniteDuration());
}

TEST_F(EitherTest, TheWaitEndsAtTheTimeout) {
  for (const absl::Duration timeout : {absl::Milliseconds(1), absl::ZeroDuration(), absl::Seconds(-1)}) {
    FutexWaitForEither(shared_, 0, private_, 0, timeout);
  }
}

TEST_F(EitherTest, AWakeOfEitherEndsTheWait) {
  for (const bool by_shared : {true, false}) {
    over_ = false;
    shared_ = private_ = 0;
    StartSleeper();
    AwaitSleeper(shared_);
    over_ = true;
    (by_shared ? shared_ : private_) = 1;
    if (by_shared) FutexWake(shared_);
    if (!by_shared) PrivateFutexWake(private_);
    sleeper_.join();
  }
}

// A process that maps the shared word may move its sleepers to a word that is never woken.
TEST_F(EitherTest, ASleeperThatIsMovedElsewhereHearsThePrivateWord) {
  StartSleeper();
  while (Requeue(shared_, elsewhere_) != 1) std::this_thread::yield();
  over_ = true;
  private_ = 1;
  PrivateFutexWake(private_);
  sleeper_.join();
}

}  // namespace
}  // namespace paramshard::wire
