// Transfers to a mirror that end in the middle: readers never see a part of a version, and the next one comes.

#include <csignal>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/faults/mirrored_training.h"
#include "tests/support/relay.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

using ::testing::HasSubstr;

// A transfer takes 16 MiB, of which node 0 sends half.
constexpr int64_t kLargeRows = 2048;
constexpr int64_t kCutAfter = 3 << 20;
// Half as long as transfers that stand still last: no step waits for one.
constexpr absl::Duration kSlowStep = absl::Seconds(5);

// Two daemons own the model. The mirror reaches node 0 through the relay.
class MirrorTransferTest : public testing::Test {
 protected:
  // Leaves the mirror with commit 20 and a third of commit 21's planes.
  void CutATransfer() {
    ASSERT_OK(training_.AwaitReady());
    mirror_.emplace(relay_.port());
    training_.TrainTo(20);
    ASSERT_THAT(mirror_->Read(20), IsOkAndHolds(20));
    relay_.CutAfter(kCutAfter);
    training_.TrainTo(21);
    ASSERT_TRUE(relay_.AwaitCut(kMirrorTimeout));
    ExpectCommit20();
  }
  void ExpectCommit20() {
    EXPECT_THAT(mirror_->Read(0), IsOkAndHolds(20));
    ASSERT_OK_AND_ASSIGN(const nlohmann::json listed, mirror_->Listed());
    EXPECT_EQ(listed["active"]["commitNumber"], "20");
    EXPECT_FALSE(listed.contains("staged")) << listed;
  }

  MirroredTraining training_{{.nodes = 2, .flags = {"--keeper=on"}, .large_rows = kLargeRows}};
  Relay relay_{training_.port(0)};
  std::optional<ReadMirror> mirror_;
};

TEST_F(MirrorTransferTest, TheOwnerIsKilled) {
  ASSERT_NO_FATAL_FAILURE(CutATransfer());
  ASSERT_OK_AND_ASSIGN(const pid_t server, ServerOf(training_.sockets(0)));
  kill(server, SIGKILL);
  ExpectCommit20();
  relay_.Break();
  // Commit 21 may be there before the training goes on.
  EXPECT_OK(mirror_->Read(0));
  training_.TrainTo(30);
  EXPECT_THAT(mirror_->Read(30), IsOkAndHolds(30));
}

TEST_F(MirrorTransferTest, TheMirrorIsKilled) {
  ASSERT_NO_FATAL_FAILURE(CutATransfer());
  mirror_->daemon().Signal(SIGKILL);
  ASSERT_OK(mirror_->daemon().AwaitExit(kMirrorTimeout));
  training_.TrainTo(22);
  // The daemon notices nothing, and sends the version that it has begun.
  mirror_->Start();
  ASSERT_OK(mirror_->AwaitError("node 0 at 127.0.0.1:"));
  relay_.Break();
  EXPECT_THAT(mirror_->Read(22), IsOkAndHolds(22));
}

// It is whole again after both ends have given the transfer up.
TEST_F(MirrorTransferTest, TheLinkIsCut) {
  ASSERT_NO_FATAL_FAILURE(CutATransfer());
  EXPECT_THAT(mirror_->AwaitError("no answer within 5s"), IsOkAndHolds(HasSubstr("node 0 at 127.0.0.1:")));
  training_.TrainTo(40);
  EXPECT_LT(training_.longest_step(), kSlowStep);
  ExpectCommit20();
  relay_.Mend();
  EXPECT_THAT(mirror_->Read(40), IsOkAndHolds(40));
}

}  // namespace
}  // namespace paramshard::test
