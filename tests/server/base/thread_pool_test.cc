#include "server/base/thread_pool.h"

#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "server/base/thread.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(ThreadPoolTest, EveryWorkIsDoneOnce) {
  ASSERT_OK_AND_ASSIGN(const auto pool, ThreadPool::Start("a test", 3));
  EXPECT_EQ(pool->threads(), 3);
  for (const int count : {0, 1, 2, 1000}) {
    std::vector<int> done(count);
    EXPECT_OK(pool->Run(count, [&](int thread, int64_t index) {
      EXPECT_LT(thread, 3);
      ++done[index];
      return absl::OkStatus();
    }));
    EXPECT_THAT(done, Each(1));
  }
}

TEST(ThreadPoolTest, AnErrorEndsTheListAndNotThePool) {
  ASSERT_OK_AND_ASSIGN(const auto pool, ThreadPool::Start("a test", 1));
  int done = 0;
  const auto fail_at_7 = [&](int, int64_t index) {
    ++done;
    return index == 7 ? absl::DataLossError("the seventh") : absl::OkStatus();
  };
  EXPECT_THAT(pool->Run(100, fail_at_7), StatusIs(absl::StatusCode::kDataLoss, "the seventh"));
  EXPECT_EQ(done, 8);
  EXPECT_OK(pool->Run(5, fail_at_7));
  EXPECT_EQ(done, 13);
}

// Each task waits until all have begun.
TEST(ThreadPoolTest, RanksAreAtWorkAtOnce) {
  constexpr int kRanks = 3;
  absl::Mutex mu;
  std::vector<int> here;
  EXPECT_OK(OnAllRanks("a test", kRanks, [&](int rank) -> absl::Status {
    absl::MutexLock lock(&mu);
    here.push_back(rank);
    const auto all = [&] { return here.size() == kRanks; };
    if (mu.AwaitWithTimeout(absl::Condition(&all), absl::Minutes(1))) return absl::OkStatus();
    return absl::DeadlineExceededError("one after the other");
  }));
  EXPECT_THAT(here, UnorderedElementsAre(0, 1, 2));
}

TEST(ThreadPoolTest, TheErrorOfARankIsReturned) {
  EXPECT_THAT(
      OnAllRanks("a test", 2, [](int rank) { return rank == 1 ? absl::DataLossError("rank 1") : absl::OkStatus(); }),
      StatusIs(absl::StatusCode::kDataLoss, "rank 1"));
  const ThreadShortage shortage(1);
  int done = 0;
  EXPECT_THAT(OnAllRanks("a test", 2, [&](int) { return ++done, absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("for a test")));
  EXPECT_EQ(done, 0);
}

TEST(ThreadPoolTest, WithoutAThreadNothingIsDone) {
  const ThreadShortage shortage(2);
  EXPECT_THAT(ThreadPool::Start("a test", 3), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("for a test")));
}

}  // namespace
}  // namespace paramshard::server
