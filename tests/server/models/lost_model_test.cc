// Models that were lost with a server: callers that ask for them are told, until they are deleted or made anew.

#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/kept_memory.h"
#include "server/device/memory.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/server/models/left_memory.h"
#include "tests/server/models/model_fixture.h"
#include "tests/server/models/test_world.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// Copies what is kept after every call that changes it: the memory that a server leaves when it dies there.
class RecordedStore final : public KeptStore {
 public:
  explicit RecordedStore(FakeKeptStore* store) : store_(store) {}

  absl::Status Keep(absl::string_view name, int fd) override {
    if (!refused.empty() && absl::EndsWith(name, refused)) return absl::ResourceExhaustedError("the test refuses it");
    const absl::Status kept = store_->Keep(name, fd);
    Record();
    return kept;
  }
  absl::Status DropPrefix(absl::string_view prefix) override {
    before_drop();
    const absl::Status dropped = store_->DropPrefix(prefix);
    Record();
    return dropped;
  }
  absl::StatusOr<Descriptors> Take(absl::string_view prefix) override { return store_->Take(prefix); }

  std::string refused;  // the end of names of what cannot be kept
  std::function<void()> before_drop = [] {};
  std::vector<std::unique_ptr<FakeKeptStore>> left;

 private:
  void Record() {
    left.push_back(std::make_unique<FakeKeptStore>());
    CopyKept(*store_, *left.back());
  }

  FakeKeptStore* const store_;
};

class LostModelTest : public ModelTest {
 protected:
  void SetUp() override { Start(); }

  // A server in the place of the one before, which takes over what that one has left.
  void Start() { StartWith(kept_.get()); }
  void StartWith(KeptStore* store) {
    CloseWorld();
    world_ = std::make_unique<TestWorld>(TestWorld::Options{.moves = {.moves = true}, .kept = store});
    ASSERT_OK(world_->store().TakeOver());
  }
  void StartAfter(FakeKeptStore& left) {
    CloseWorld();
    kept_ = std::make_unique<FakeKeptStore>();
    CopyKept(left, *kept_);
    Start();
  }
  void Create() { model_ = world_->Create(TestSpec()); }
  // From some checkpoint.
  absl::Status CreateByRestore(const std::function<absl::Status()>& write) {
    const auto fill = [&](const std::shared_ptr<Model>& model, ModelStore::Show) {
      return model->changes().Restore({}, write).status();
    };
    return world_->store().CreateOrJoin(Parse(TestSpec()), fill).status();
  }

  static std::string NameOf(const std::string& piece) { return absl::StrCat("m", absl::string_view("\0", 1), piece); }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    const auto taken = kept_->TakeAll();
    EXPECT_OK(taken);
    for (const auto& [name, fd] : *taken) {
      if (name.front() != '\0') names.push_back(name.substr(name.find('\0') + 1));
    }
    return names;
  }
  // Leaves the model like a server whose memory is damaged.
  void LoseAllBut(const std::string& piece) {
    CloseWorld();
    const auto taken = kept_->TakeAll();
    ASSERT_OK(taken);
    kept_ = std::make_unique<FakeKeptStore>();
    ASSERT_OK(kept_->Keep(NameOf(piece), taken->at(NameOf(piece)).get()));
  }
  void WipeMagic() {
    CloseWorld();
    const auto taken = kept_->TakeAll();
    ASSERT_OK(taken);
    const uint64_t nothing = 0;
    ASSERT_EQ(pwrite(taken->at(NameOf(kJournalPiece)).get(), &nothing, sizeof(nothing), 0), 8);
  }
  void ExpectLost(const std::string& why) {
    EXPECT_THAT(world_->store().Find("m"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(why)));
    const auto lost = world_->store().lost().List();
    ASSERT_THAT(lost, SizeIs(1));
    EXPECT_EQ(lost.begin()->first, "m");
    EXPECT_THAT(std::string(lost.begin()->second.message()),
                AllOf(HasSubstr(absl::StrCat("before this one (", why)), HasSubstr("create it with a restore")));
  }

  std::unique_ptr<FakeKeptStore> kept_ = std::make_unique<FakeKeptStore>();
};

TEST_F(LostModelTest, IsListedUntilItIsDeleted) {
  Create();
  EXPECT_THAT(world_->store().lost().List(), IsEmpty());
  LoseAllBut(kJournalPiece);
  Start();
  ExpectLost("adopt m:rank-0/master");
  ASSERT_OK(world_->store().Delete("m", ""));
  EXPECT_THAT(world_->store().lost().List(), IsEmpty());
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(LostModelTest, IsMadeAnewByARestoreInThePlaceOfWhatWasLeft) {
  Create();
  LoseAllBut("rank-0/master");
  ASSERT_OK(kept_->Keep(NameOf("rank-7/master"), kept_->TakeAll()->begin()->second.get()));
  Start();
  ExpectLost("its memory has no journal");
  ASSERT_OK(CreateByRestore([&] {
    EXPECT_THAT(Names(), Not(Contains("rank-7/master"))) << "it is freed before there is as much again";
    return absl::OkStatus();
  }));
  EXPECT_THAT(world_->store().lost().List(), IsEmpty());
  EXPECT_THAT(Names(), AllOf(Not(Contains("lost")), Contains("rank-1/master")));
  Start();
  EXPECT_OK(world_->store().Find("m"));
}

TEST_F(LostModelTest, IsLostUntilItIsMadeAnew) {
  Create();
  LoseAllBut(kJournalPiece);
  Start();
  EXPECT_THAT(CreateByRestore([] { return absl::DataLossError("damaged"); }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
  ExpectLost("adopt m:rank-0/master");
  Start();
  ExpectLost("adopt m:rank-0/master");
  // A server dies while it makes it anew.
  FakeKeptStore left;
  ASSERT_OK(CreateByRestore([&] { return CopyKept(*kept_, left), absl::OkStatus(); }));
  StartAfter(left);
  ExpectLost("adopt m:rank-0/master");
  ASSERT_OK(CreateByRestore([] { return absl::OkStatus(); }));
  Start();
  EXPECT_OK(world_->store().Find("m"));
}

TEST_F(LostModelTest, WhereverAServerDiesThatMakesItAnewItIsLostOrMade) {
  Create();
  LoseAllBut("rank-0/master");
  RecordedStore store(kept_.get());
  StartWith(&store);
  // It is not restored, then not allocated, and then made.
  EXPECT_THAT(CreateByRestore([] { return absl::DataLossError("damaged"); }), StatusIs(absl::StatusCode::kDataLoss));
  store.refused = "rank-1/master";
  EXPECT_THAT(CreateByRestore([] { return absl::OkStatus(); }), StatusIs(absl::StatusCode::kResourceExhausted));
  const size_t failed = store.left.size();
  store.refused.clear();
  ASSERT_OK(CreateByRestore([] { return absl::OkStatus(); }));
  ASSERT_GT(store.left.size(), failed + 5);
  for (size_t i = 0; i < store.left.size(); ++i) {
    StartAfter(*store.left[i]);
    const absl::Status found = world_->store().Find("m").status();
    if (i >= failed && found.ok()) continue;
    EXPECT_THAT(found, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("its memory has no journal")))
        << "behind call " << i;
  }
  EXPECT_OK(world_->store().Find("m")) << "behind the last one";
  CloseWorld();
}

TEST_F(LostModelTest, SoManyDeletionsAreRemembered) {
  const auto memory = Memory::Allocate("lost", 1, Sharing::kKept);
  ASSERT_OK(memory);
  const int fd = memory->fd();
  constexpr int kAtOnce = 103;
  for (int first = 0; first < 10 * kAtOnce; first += kAtOnce) {
    for (int i = first; i < first + kAtOnce; ++i) {
      ASSERT_OK(kept_->Keep(absl::StrCat("lost-", i, absl::string_view("\0", 1), "rank-0/master"), fd));
    }
    ASSERT_OK(world_->store().TakeOver());
    for (int i = first; i < first + kAtOnce; ++i) {
      const std::string name = absl::StrCat("lost-", i);
      ASSERT_OK(world_->store().Delete(name, name));
      ASSERT_OK(world_->store().Delete(name, name)) << "repeated";
    }
  }
  EXPECT_THAT(world_->store().Delete("lost-0", "lost-0"), StatusIs(absl::StatusCode::kNotFound))
      << "older ones make room";
}

TEST_F(LostModelTest, ARepeatedDeletionIsAnsweredAsSoonAsTheModelIsNotFoundAnyMore) {
  Create();
  LoseAllBut(kJournalPiece);
  Start();
  int repeated = 0;
  world_->cluster().OnForget([&] {
    ++repeated;
    EXPECT_THAT(world_->store().Find("m"), StatusIs(absl::StatusCode::kNotFound));
    EXPECT_OK(world_->store().Delete("m", "once"));
  });
  ASSERT_OK(world_->store().Delete("m", "once"));
  EXPECT_EQ(repeated, 1);
  world_->cluster().OnForget([] {});
}

TEST_F(LostModelTest, ARepeatedDeletionThatWaitsForTheFirstIsAnsweredLikeIt) {
  Create();
  LoseAllBut(kJournalPiece);
  RecordedStore store(kept_.get());
  StartWith(&store);
  std::thread repeated;
  store.before_drop = [&] {
    absl::Notification begun;
    repeated = std::thread([&] {
      begun.Notify();
      EXPECT_OK(world_->store().Delete("m", "once"));
    });
    begun.WaitForNotification();
  };
  ASSERT_OK(world_->store().Delete("m", "once"));
  repeated.join();
  EXPECT_THAT(world_->store().Delete("m", "twice"), StatusIs(absl::StatusCode::kNotFound));
  CloseWorld();
}

TEST_F(LostModelTest, ADeletionDoesNotWaitForACreationOfAnotherModel) {
  Create();
  LoseAllBut(kJournalPiece);
  Start();
  v1::ModelSpec other = TestSpec();
  other.set_name("other");
  const auto fill = [&](const std::shared_ptr<Model>&, ModelStore::Show) {
    EXPECT_OK(world_->store().Delete("m", "once"));
    EXPECT_THAT(world_->store().Find("m"), StatusIs(absl::StatusCode::kNotFound));
    return absl::OkStatus();
  };
  ASSERT_OK(world_->store().CreateOrJoin(Parse(other), fill));
  EXPECT_OK(world_->store().Delete("m", "once"));
}

TEST_F(LostModelTest, IsNotDeletedWhileItIsMadeAnew) {
  Create();
  LoseAllBut(kJournalPiece);
  Start();
  EXPECT_THAT(CreateByRestore([&] {
                EXPECT_THAT(world_->store().Delete("m", ""),
                            StatusIs(absl::StatusCode::kUnavailable, HasSubstr("it is being created anew")));
                return absl::DataLossError("damaged");
              }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
  ExpectLost("adopt m:rank-0/master");
  EXPECT_OK(world_->store().Delete("m", ""));
  EXPECT_THAT(Names(), IsEmpty());
}

// A change that was cut off and that fails when it is made again, while the store serves.
class LossTest : public LostModelTest {
 protected:
  void SetUp() override {
    LostModelTest::SetUp();
    Create();
    FakeKeptStore left;
    RestoredState restored;
    restored.source = {.kind = ChangeSource::Kind::kCheckpoint, .text = "/saves/m/step-7"};
    ASSERT_OK(model_->changes().Restore(restored, [&] { return CopyKept(*kept_, left), absl::OkStatus(); }).status());
    StartAfter(left);
    ASSERT_OK_AND_ASSIGN(model_, world_->store().Find("m"));
    world_->cluster().OnReport([this](const ModelReport& report) {
      told_.emplace_back(report.lost.ok() ? "state" : "lost");
      if (!report.lost.ok()) when_reported_();
    });
    world_->cluster().OnForget([this] { told_.emplace_back("forget"); });
  }
  void TearDown() override { CloseWorld(); }
  void WhenReported(std::function<void()> act) { when_reported_ = std::move(act); }
  void Lose() { world_->store().FinishChange(model_, absl::NotFoundError("no such folder")); }
  // Returns what node 0 has heard.
  const std::vector<std::string>& told() const { return told_; }

 private:
  std::function<void()> when_reported_ = [] {};
  std::vector<std::string> told_;
};

TEST_F(LossTest, IsReportedBeforeAnybodyCanDeleteTheModel) {
  WhenReported([this] {
    EXPECT_THAT(world_->store().lost().List(), IsEmpty());
    EXPECT_THAT(world_->store().Find("m"), IsOkAndHolds(model_));
    EXPECT_THAT(world_->store().Delete("m", ""), StatusIs(absl::StatusCode::kUnavailable));
  });
  Lose();
  ExpectLost("no such folder");
  ASSERT_OK(world_->store().Delete("m", ""));
  EXPECT_THAT(told(), ElementsAre("lost", "forget"));
}

TEST_F(LossTest, IsTheLastThatIsSaidOfTheModel) {
  // Acts like node 0, which tells all daemons that trainers of others wait in vain.
  const auto refuse = [this] { model_->trainers().OnEpochRefused(absl::DataLossError("want its state on all nodes")); };
  WhenReported(refuse);
  EXPECT_THAT(model_->changes().Restore({}, [] { return absl::DataLossError("damaged"); }),
              StatusIs(absl::StatusCode::kDataLoss));
  Lose();
  refuse();
  // A call had found it, and deletes it late: the name may be another model's.
  EXPECT_OK(model_->Close(absl::NotFoundError("it was deleted")));
  EXPECT_THAT(told(), ElementsAre("lost"));
}

TEST_F(LostModelTest, AJournalWithoutItsBeginningBesideMemoryIsDamage) {
  Create();
  WipeMagic();
  Start();
  ExpectLost("its memory has no journal that was begun");
}

TEST_F(LostModelTest, AJournalWithoutItsBeginningAloneIsAModelThatWasNotBegun) {
  Create();
  WipeMagic();
  LoseAllBut(kJournalPiece);
  Start();
  EXPECT_THAT(world_->store().Find("m"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(LostModelTest, PiecesThatAModelDoesNotHaveAreFreed) {
  Create();
  CloseWorld();
  const auto taken = kept_->TakeAll();
  ASSERT_OK(taken);
  const int fd = taken->begin()->second.get();
  // Dropping the last one by its name drops the master with it.
  for (const std::string piece : {"rank-7/master", "lost", "rank-0/mas"}) ASSERT_OK(kept_->Keep(NameOf(piece), fd));
  Start();
  EXPECT_OK(world_->store().Find("m"));
  EXPECT_THAT(Names(), AllOf(Not(Contains("rank-7/master")), Not(Contains("lost")), Contains("rank-0/mas"),
                             Contains("rank-0/master")));
  Start();
  EXPECT_OK(world_->store().Find("m"));
}

}  // namespace
}  // namespace paramshard::server
