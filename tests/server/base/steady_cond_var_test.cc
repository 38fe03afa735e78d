#include "server/base/steady_cond_var.h"

#include <thread>

#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

TEST(SteadyCondVarTest, ASignalEndsAWait) {
  absl::Mutex mu;
  SteadyCondVar changed;
  bool said = false;
  std::thread speaker;
  {
    absl::MutexLock lock(&mu);
    // Runs once the wait has released the mutex.
    speaker = std::thread([&] {
      absl::MutexLock lock(&mu);
      said = true;
      changed.SignalAll();
    });
    while (!said) changed.Wait(&mu);
  }
  speaker.join();
}

TEST(SteadyCondVarTest, ADeadlineEndsAWaitAndIsNotEarly) {
  absl::Mutex mu;
  SteadyCondVar changed;
  const SteadyTime deadline = SteadyDeadline(absl::Milliseconds(5));
  absl::MutexLock lock(&mu);
  while (!changed.WaitUntil(&mu, deadline)) {
  }
  EXPECT_GE(SteadyNow(), deadline);
  EXPECT_EQ(TimeLeft(deadline), absl::ZeroDuration());
}

TEST(SteadyDeadlineTest, InfiniteWaitsDoNotOverflow) {
  EXPECT_GT(TimeLeft(SteadyDeadline(absl::InfiniteDuration())), absl::Hours(24 * 300));
  EXPECT_EQ(TimeLeft(SteadyDeadline(-absl::InfiniteDuration())), absl::ZeroDuration());
}

}  // namespace
}  // namespace paramshard::server
