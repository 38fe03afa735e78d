#include "client/internal/epoch_page.h"

#include <unistd.h>

#include <latch>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard::internal {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;

// A page of zeros without a daemon, and a trainer's end of it.
class EpochPageTest : public testing::Test {
 protected:
  static constexpr wire::WordsCounts kCounts = {.slots = 3, .ranks = 2, .gradient_slots = 2};

  std::vector<wire::Word> lines_{wire::Words::SizeBytes(kCounts) / sizeof(wire::Word) + 1};
  const wire::Words words_{lines_.data(), kCounts};
  const EpochPage page_{words_, /*daemon_pidfd=*/-1, getpid()};
};

// The watch and the trainer's own thread may both find that the daemon has died.
TEST_F(EpochPageTest, TwoThreadsThatEndAPageMoveEveryWordOnce) {
  std::latch both(2);
  const auto end = [&](const absl::Status& why) {
    both.arrive_and_wait();
    page_.End(why);
  };
  const absl::Status first = absl::UnavailableError("one"), second = absl::CancelledError("other");
  std::thread other(end, second);
  end(first);
  other.join();
  EXPECT_THAT(page_.status(), AnyOf(Eq(first), Eq(second)));
  EXPECT_EQ(words_.committed().value, wire::kFinishedStep);
  EXPECT_EQ(words_.ready(2, 1).value, wire::kFinishedStep);
  EXPECT_EQ(words_.drained(1).value, wire::kFinishedStep);
  // Nothing was answered by that.
  EXPECT_FALSE(page_.Answered(1));
}

}  // namespace
}  // namespace paramshard::internal
