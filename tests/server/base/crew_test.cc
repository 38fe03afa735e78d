#include "server/base/crew.h"

#include <vector>

#include "gmock/gmock.h"
#include "server/base/thread.h"
#include "tests/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(CrewTest, EveryWorkIsDoneOnce) {
  ASSERT_OK_AND_ASSIGN(const auto crew, Crew::Start("a test", 3));
  EXPECT_EQ(crew->threads(), 3);
  for (const int count : {0, 1, 2, 1000}) {
    std::vector<int> done(count);
    EXPECT_OK(crew->Run(count, [&](int thread, int64_t index) {
      EXPECT_LT(thread, 3);
      ++done[index];
      return absl::OkStatus();
    }));
    EXPECT_THAT(done, Each(1));
  }
}

TEST(CrewTest, AnErrorEndsTheListAndNotTheCrew) {
  ASSERT_OK_AND_ASSIGN(const auto crew, Crew::Start("a test", 1));
  int done = 0;
  const auto fail_at_7 = [&](int, int64_t index) {
    ++done;
    return index == 7 ? absl::DataLossError("the seventh") : absl::OkStatus();
  };
  EXPECT_THAT(crew->Run(100, fail_at_7), StatusIs(absl::StatusCode::kDataLoss, "the seventh"));
  EXPECT_EQ(done, 8);
  EXPECT_OK(crew->Run(5, fail_at_7));
  EXPECT_EQ(done, 13);
}

TEST(CrewTest, WithoutAThreadNothingIsDone) {
  const ThreadShortage shortage(2);
  EXPECT_THAT(Crew::Start("a test", 3), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("for a test")));
}

}  // namespace
}  // namespace paramshard::server
