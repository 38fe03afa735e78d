// Saves of a daemon that is not node 0: here the test plays node 0.
#include "server/checkpoints/saver.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/checkpoint/step_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/steady_cond_var.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "tests/server/base/manual_clock.h"
#include "tests/server/base/simulated_disk.h"
#include "tests/server/models/model_fixture.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kLong = absl::Seconds(30);

class SaverFollowerTest : public ModelTest {
 protected:
  void SetUp() override {
    Open(TestSpec(), {});
    world_->cluster().OnTellSave([this](const SaveMessage& message) {
      absl::MutexLock lock(&mu_);
      if (const auto* const part = std::get_if<SavePart>(&message.what); part != nullptr) parts_.push_back(*part);
      if (std::holds_alternative<SaveRequest>(message.what)) ++requests_;
      changed_.SignalAll();
    });
    const Saver::Options options{
        .root = root_.path(), .leads = false, .calls = &calls_, .clock = &clock_, .before_copy = [this](int rank) {
          before_copy_(rank);
        }};
    auto saver = Saver::Create(*model_, options, SaverSource::FolderTrouble::kIsRefused);
    ASSERT_OK(saver.status());
    saver_ = *std::move(saver);
  }
  void TearDown() override {
    saver_.reset();
    CloseWorld();
  }

  SaveOrder OrderOf(int64_t step, absl::uint128 id = 5) const {
    const History history = model_->state().history();
    return {.id = id,
            .step = step,
            .version = step,
            .lineage = history.lineage.ToString(),
            .history_id = history.id.ToString(),
            .spec_fingerprint = model_->fingerprint(),
            .timeout = absl::Minutes(1)};
  }
  void Say(auto what) { saver_->OnMessage({.model = "m", .what = what}); }
  void Permit(const SaveOrder& order) {
    const std::string folder = ModelFolder(root_.path(), "m");
    const Disk disk(&calls_);
    const absl::Status made = disk.MakeFolder(folder);
    ASSERT_TRUE(made.ok() || absl::IsAlreadyExists(made)) << made;
    ASSERT_OK(disk.MakeFolder(absl::StrCat(
        folder, "/", checkpoint::TemporaryFolderName(order.step, model_->state().history().id.value, order.id))));
    Say(SavePermission{.id = order.id});
  }
  // The first `count` parts that the saver has told.
  std::vector<SavePart> AwaitParts(size_t count) {
    const SteadyTime end = SteadyDeadline(kLong);
    absl::MutexLock lock(&mu_);
    while (parts_.size() < count && !changed_.WaitUntil(&mu_, end)) {
    }
    EXPECT_GE(parts_.size(), count);
    return parts_.size() < count ? std::vector<SavePart>(count) : parts_;
  }
  // Drains. Calls `act` on another thread once node 0 is asked for a save; the drain must end then.
  void DrainUntil(const std::function<void()>& act) {
    const SteadyTime end = SteadyDeadline(kLong);
    std::thread acts([&] {
      {
        absl::MutexLock lock(&mu_);
        while (requests_ == 0 && !changed_.WaitUntil(&mu_, end)) {
        }
      }
      act();
    });
    saver_->Drain(end);
    acts.join();
    EXPECT_LT(SteadyNow(), end);
  }
  bool HasToldParts() {
    absl::MutexLock lock(&mu_);
    return !parts_.empty();
  }
  SaveRecord Await(int64_t number) {
    const auto record = saver_->Await(number, SteadyDeadline(kLong));
    EXPECT_OK(record);
    EXPECT_TRUE(record.ok() && IsOver(record->state));
    return record.ok() ? *record : SaveRecord();
  }

  const test::TemporaryDirectory root_;
  QuickCalls calls_;
  ManualClock clock_;
  std::function<void(int rank)> before_copy_ = [](int) {};
  std::unique_ptr<Saver> saver_;

  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::vector<SavePart> parts_;  // these two guarded by mu_
  int requests_ = 0;
};

TEST_F(SaverFollowerTest, AnOrderWithPermissionEndsInAPart) {
  const SaveOrder order = OrderOf(0);
  Say(order);
  Permit(order);
  const SavePart part = AwaitParts(1)[0];
  EXPECT_OK(part.status);
  EXPECT_EQ(part.id, order.id);
  EXPECT_NE(part.hash, 0);
  EXPECT_EQ(saver_->records()[0].state, SaveState::kWriting) << "until node 0 says what came of it";
  Say(SaveEnd{.id = order.id, .state = SaveState::kPublished, .path = "p", .size_bytes = 8});
  const SaveRecord record = Await(1);
  EXPECT_EQ(record.state, SaveState::kPublished);
  EXPECT_EQ(record.path, "p");
  EXPECT_EQ(record.size_bytes, 8);
  EXPECT_OK(saver_->CheckIdle("delete"));
}

TEST_F(SaverFollowerTest, NothingIsWrittenWithoutPermission) {
  Say(OrderOf(0));
  Say(SavePermission{.id = 6});
  Say(SaveEnd{.id = 5, .why = absl::UnavailableError("node 0's words")});
  const SaveRecord record = Await(1);
  EXPECT_EQ(record.state, SaveState::kAbandoned);
  EXPECT_THAT(record.status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 0's words")));
  EXPECT_FALSE(model_->copies().is_awaited());
  EXPECT_OK(model_->changes().Import({}, [] { return absl::OkStatus(); })) << "the state is released";
}

TEST_F(SaverFollowerTest, AnOrderThatComesTwiceIsOne) {
  const SaveOrder order = OrderOf(0);
  Say(order);
  Say(order);
  Say(SaveEnd{.id = order.id});
  Await(1);
  Say(order);
  EXPECT_THAT(saver_->records(), SizeIs(1));
}

// A decision carries the order of the save before it, and may come when that one is over and the next is under way.
TEST_F(SaverFollowerTest, AnOrderThatComesAgainBehindTheNextOneIsNotTaken) {
  Say(OrderOf(0, 5));
  Say(SaveEnd{.id = 5});
  Await(1);
  const SaveOrder next = OrderOf(0, 6);
  Say(next);
  Say(OrderOf(0, 5));
  Say(next);
  Permit(next);
  EXPECT_OK(AwaitParts(1)[0].status);
  Say(SaveEnd{.id = 6, .state = SaveState::kPublished, .path = "p"});
  EXPECT_EQ(Await(2).path, "p");
  Say(OrderOf(0, 5));
  EXPECT_THAT(saver_->records(), SizeIs(2));
}

TEST_F(SaverFollowerTest, AnOrderWhileAnotherSaveIsUnderWayIsAnswered) {
  Say(OrderOf(0));
  Say(OrderOf(0, 6));
  const SavePart part = AwaitParts(1)[0];
  EXPECT_EQ(part.id, 6);
  EXPECT_THAT(part.status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the save of step 0 is still in progress")));
  EXPECT_THAT(saver_->records(), SizeIs(1));
}

// It may come by a decision, which no stream orders: node 0 gives no order before the last save is over.
TEST_F(SaverFollowerTest, AnOrderMayComeBeforeTheEndOfTheSaveBefore) {
  const SaveOrder first = OrderOf(0);
  Say(first);
  Permit(first);
  EXPECT_OK(AwaitParts(1)[0].status);
  Attach();
  Step();
  const SaveOrder second = OrderOf(1, 6);
  Say(second);
  Say(SaveEnd{.id = first.id, .state = SaveState::kPublished, .path = "first"});
  EXPECT_EQ(Await(1).path, "first");
  Permit(second);
  EXPECT_OK(AwaitParts(2)[1].status);
  Say(SaveEnd{.id = second.id, .state = SaveState::kPublished, .path = "second"});
  EXPECT_EQ(Await(2).path, "second");
}

// The order has come before the commit's answer.
TEST_F(SaverFollowerTest, TheStateIsHeldWhenItsCommitIsAnswered) {
  Attach();
  const SaveOrder order = OrderOf(1);
  Say(order);
  EXPECT_EQ(saver_->records()[0].state, SaveState::kWaiting);
  EXPECT_FALSE(HasToldParts());
  Step();
  saver_->OnCommitted({.commit_number = 1}, false);
  Permit(order);
  EXPECT_OK(AwaitParts(1)[0].status);
}

TEST_F(SaverFollowerTest, ACommitThatDoesNotComeIsSaidAtTheEndOfTheEpoch) {
  Attach();
  Say(OrderOf(1));
  saver_->OnSettled();
  EXPECT_THAT(AwaitParts(1)[0].status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("want commit 1 (version 1) as at node 0")));
  EXPECT_EQ(Await(1).state, SaveState::kAbandoned);
}

TEST_F(SaverFollowerTest, AStateThatIsNotTheOrderedOneIsSaidAtOnce) {
  Say(OrderOf(1));
  EXPECT_THAT(AwaitParts(1)[0].status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("got commit 0")));
  SaveOrder other = OrderOf(0, 6);
  other.spec_fingerprint ^= 1;
  Say(other);
  EXPECT_THAT(AwaitParts(2)[1].status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("node 0's spec")));
}

TEST_F(SaverFollowerTest, ANodeZeroThatIsLostAfterThePartLeavesItUnknown) {
  const SaveOrder order = OrderOf(0);
  Say(order);
  Permit(order);
  EXPECT_OK(AwaitParts(1)[0].status);
  Say(SaveLeaderLost{absl::UnavailableError("node 0 lost")});
  EXPECT_EQ(Await(1).state, SaveState::kUnknown);
}

TEST_F(SaverFollowerTest, ANodeZeroThatIsLostBeforeThePartLeavesNothing) {
  Say(OrderOf(0));
  Say(SaveLeaderLost{absl::UnavailableError("node 0 lost")});
  EXPECT_EQ(Await(1).state, SaveState::kAbandoned);
}

TEST_F(SaverFollowerTest, APartThatHasFailedLeavesNothingWhateverNodeZeroDoes) {
  const SaveOrder order = OrderOf(0);
  Say(order);
  Say(SavePermission{.id = order.id});  // and there is no folder
  EXPECT_THAT(AwaitParts(1)[0].status, StatusIs(absl::StatusCode::kNotFound));
  Say(SaveLeaderLost{absl::UnavailableError("node 0 lost")});
  const SaveRecord record = Await(1);
  EXPECT_EQ(record.state, SaveState::kAbandoned);
  EXPECT_THAT(record.status, StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SaverFollowerTest, AModelThatGoesSaysThatItWritesNothing) {
  Say(OrderOf(0));
  saver_->Stop();
  EXPECT_THAT(AwaitParts(1)[0].status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(Await(1).state, SaveState::kAbandoned);
  Say(OrderOf(0, 6));
  EXPECT_THAT(AwaitParts(2)[1].status, StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(SaverFollowerTest, ADrainWantsNothingOfAModelWithoutCommits) {
  saver_->Drain(SteadyDeadline(kLong));
  absl::MutexLock lock(&mu_);
  EXPECT_EQ(requests_, 0);
}

TEST_F(SaverFollowerTest, ADrainEndsWithNodeZerosAnswer) {
  Attach();
  Step();
  DrainUntil([this] { Say(SaveEnd{}); });
  EXPECT_THAT(saver_->records(), IsEmpty());
  EXPECT_EQ(requests_, 1);
}

TEST_F(SaverFollowerTest, ADrainEndsWithoutAnAnswerWhenTheModelGoes) {
  Attach();
  Step();
  DrainUntil([this] { saver_->Stop(); });
  EXPECT_EQ(requests_, 1);
}

}  // namespace
}  // namespace paramshard::server
