#include "client/internal/restart_wait.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RestartWaitTest : public testing::Test {
 protected:
  RestartWait Wait(absl::Duration timeout) {
    return {"open model m", timeout, [this](absl::string_view text) { told_.emplace_back(text); }};
  }

  std::vector<std::string> told_;
};

TEST_F(RestartWaitTest, ItTriesAgainForAsLongAsTimeIsLeftAndSaysSoOnce) {
  RestartWait wait = Wait(absl::Hours(1));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(wait.Pause(absl::UnavailableError("nobody listens")));
  EXPECT_THAT(told_, ElementsAre(AllOf(HasSubstr("open model m"), HasSubstr("1h"), HasSubstr("nobody listens"))));
}

TEST_F(RestartWaitTest, OnlyWhatIsUnavailableIsWaitedFor) {
  RestartWait wait = Wait(absl::Hours(1));
  for (const absl::Status& failure : {absl::InvalidArgumentError(""), absl::AbortedError(""),
                                      absl::PermissionDeniedError(""), absl::DeadlineExceededError("")}) {
    EXPECT_FALSE(wait.Pause(failure)) << failure;
    EXPECT_EQ(wait.Explain(failure), failure);
  }
  EXPECT_TRUE(told_.empty());
}

TEST_F(RestartWaitTest, WithoutATimeoutThereIsNoWait) {
  RestartWait wait = Wait(absl::ZeroDuration());
  EXPECT_FALSE(wait.Pause(absl::UnavailableError("nobody listens")));
  EXPECT_THAT(wait.Explain(absl::UnavailableError("nobody listens")),
              StatusIs(absl::StatusCode::kUnavailable, "nobody listens"));
  EXPECT_TRUE(told_.empty());
}

TEST_F(RestartWaitTest, SeveralOutagesShareOneTimeout) {
  RestartWait wait = Wait(absl::Milliseconds(100));
  int tries = 0;
  while (wait.Pause(absl::UnavailableError("comes and goes")) && tries < 100) {
    ++tries;
    wait.Reached();
  }
  EXPECT_LT(tries, 100);
  EXPECT_THAT(wait.Explain(absl::UnavailableError("comes and goes")),
              StatusIs(absl::StatusCode::kUnavailable, "comes and goes; timed out after 100ms"));
}

}  // namespace
}  // namespace paramshard::internal
