// Origin of a model's values, in every state that a model is in, and after the death of the server there.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/models/import_lock.h"
#include "server/models/inspection.h"
#include "server/models/staged_import.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/server/models/left_memory.h"
#include "tests/server/models/model_fixture.h"
#include "tests/server/models/test_world.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

constexpr AnnouncedValues kAnnounced{.run = 7, .values_follow = true};

class ValueOriginTest : public ModelTest {
 protected:
  void SetUp() override { Start(); }
  void TearDown() override { CloseWorld(); }

  void Start() {
    CloseWorld();
    world_ = std::make_unique<TestWorld>(TestWorld::Options{.moves = {.moves = true}, .kept = kept_.get()});
    ASSERT_OK(world_->store().TakeOver());
  }
  // The next server, after one that was killed when it had left that.
  void StartAfter(FakeKeptStore& left) {
    CloseWorld();
    kept_ = std::make_unique<FakeKeptStore>();
    CopyKept(left, *kept_);
    Start();
  }
  void Create(const AnnouncedValues& values = {}) {
    ASSERT_OK_AND_ASSIGN(ModelStore::Created created, world_->store().CreateOrJoin(
                                                          Parse(TestSpec()), [] { return false; }, values));
    model_ = std::move(created.model);
  }
  // Rows of w, as a client brings them; `write` is called in the middle.
  static absl::Status Write(
      Model& model, const std::function<void()>& write = [] {}) {
    return model.changes().Import({.run = 9}, [&]() -> absl::Status { return write(), absl::OkStatus(); }).status();
  }
  absl::Status Restore(int64_t commit_number) {
    RestoredState restored;
    restored.commits.numbers = {.commit_number = commit_number, .version = commit_number};
    return model_->changes().Restore(restored, [] { return absl::OkStatus(); }).status();
  }
  // Now, and at the next server.
  void ExpectOrigin(ValueOrigin origin) {
    EXPECT_EQ(model_->state().origin(), origin);
    EXPECT_EQ(Summarize(*model_).origin, origin);
    FakeKeptStore left;
    CopyKept(*kept_, left);
    trainers_.clear();
    model_ = nullptr;
    StartAfter(left);
    ASSERT_OK_AND_ASSIGN(model_, world_->store().Find("m"));
    EXPECT_EQ(model_->state().origin(), origin) << "at the next server";
  }

  std::unique_ptr<FakeKeptStore> kept_ = std::make_unique<FakeKeptStore>();
};

TEST_F(ValueOriginTest, AModelThatIsCreatedHasItsInitialValues) {
  Create();
  ExpectOrigin(ValueOrigin::kInitial);
  EXPECT_EQ(model_->state().history().run, 0);
}

TEST_F(ValueOriginTest, AnAnnouncedImportIsAwaitedUntilItIsThrough) {
  Create(kAnnounced);
  ExpectOrigin(ValueOrigin::kImporting);
  EXPECT_EQ(model_->state().history().run, kAnnounced.run);
  ASSERT_OK(Write(*model_));
  ExpectOrigin(ValueOrigin::kImported);
  EXPECT_EQ(model_->state().history().run, 9) << "of the import";
}

TEST_F(ValueOriginTest, WhoeverJoinsChangesNothing) {
  Create();
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created joined, world_->store().CreateOrJoin(
                                                             Parse(TestSpec()), [] { return false; }, kAnnounced));
  EXPECT_FALSE(joined.created);
  ExpectOrigin(ValueOrigin::kInitial);
}

TEST_F(ValueOriginTest, InitialValuesOfTheSpecCountAsLongAsTheModelHasThem) {
  v1::ModelSpec other = TestSpec();
  other.set_seed(5);
  other.mutable_units(0)->mutable_parameters(0)->mutable_initial_value()->mutable_constant()->set_value(0.5);
  const auto join = [&](const AnnouncedValues& values) {
    return world_->store()
        .CreateOrJoin(
            Parse(other), [] { return false; }, values)
        .status();
  };
  const auto is_refused = StatusIs(absl::StatusCode::kAlreadyExists, testing::HasSubstr("seed"));
  constexpr AnnouncedValues kAll{.values_follow = true, .all_values_follow = true};
  Create();
  EXPECT_THAT(join({}), is_refused);
  EXPECT_THAT(join(kAnnounced), is_refused) << "some of them may stay";
  EXPECT_OK(join(kAll));
  EXPECT_THAT(join({.takes_any_seed = true}),
              StatusIs(absl::StatusCode::kAlreadyExists, testing::HasSubstr("initial value")));
  ASSERT_OK(Write(*model_));
  EXPECT_OK(join({}));
  ASSERT_OK(Restore(3));
  EXPECT_OK(join({}));
  EXPECT_EQ(model_->spec().seed, Parse(TestSpec()).seed) << "the first spec stays";
  other.mutable_units(0)->mutable_parameters(0)->set_shape(0, 2);
  EXPECT_THAT(join({}), StatusIs(absl::StatusCode::kAlreadyExists, testing::HasSubstr("shape")));

  ASSERT_OK(world_->store().Delete("m", ""));
  Create(kAnnounced);
  other = TestSpec();
  other.set_seed(5);
  EXPECT_OK(join({})) << "it gets what is imported";
  EXPECT_THAT(join(kAnnounced), is_refused);
  EXPECT_OK(join({.values_follow = true, .takes_any_seed = true}));
}

TEST_F(ValueOriginTest, AnImportIsSeenWhileItHasTheTurn) {
  Create();
  {
    ASSERT_OK_AND_ASSIGN(const StagedImport staged, StagedImport::Begin(model_));
    EXPECT_EQ(model_->state().origin(), ValueOrigin::kImporting);
  }
  EXPECT_EQ(model_->state().origin(), ValueOrigin::kInitial) << "it was given up";
  ASSERT_OK(Write(*model_));
  ASSERT_OK_AND_ASSIGN(const StagedImport another, StagedImport::Begin(model_));
  EXPECT_EQ(model_->state().origin(), ValueOrigin::kImported)
      << "its values may be gone on with until others are there";
}

TEST_F(ValueOriginTest, AnAnnouncedImportThatIsGivenUpIsStillAwaited) {
  Create(kAnnounced);
  { ASSERT_OK_AND_ASSIGN(const StagedImport staged, StagedImport::Begin(model_)); }
  ExpectOrigin(ValueOrigin::kImporting);
}

TEST_F(ValueOriginTest, NobodyTrainsOrSavesWhatAnAnnouncedImportIsToReplace) {
  Create(kAnnounced);
  const auto have_not_come = StatusIs(absl::StatusCode::kFailedPrecondition, testing::HasSubstr("have not come"));
  Trainer trainer;
  trainer.session = 1;
  EXPECT_THAT(model_->trainers().Attach(trainer), have_not_come);
  EXPECT_THAT(model_->state().Hold(), have_not_come);
  ASSERT_OK(Write(*model_));
  Attach();
  Step();
  EXPECT_EQ(model_->state().origin(), ValueOrigin::kTrained);
}

TEST_F(ValueOriginTest, CommitsTrainWhateverItBeganWith) {
  Create();
  Attach();
  Step();
  ExpectOrigin(ValueOrigin::kTrained);
  ASSERT_OK(Write(*model_));
  // It leaves commits and moments.
  ExpectOrigin(ValueOrigin::kTrained);
}

TEST_F(ValueOriginTest, ARestoredModelIsRestoredAtStep0Too) {
  for (const int64_t step : {0, 5}) {
    Create(kAnnounced);
    ASSERT_OK(Restore(step));
    ExpectOrigin(ValueOrigin::kRestored);
    EXPECT_EQ(model_->state().history().run, 0) << "nobody of this run has brought them";
    ASSERT_OK(world_->store().Delete("m", ""));
  }
}

TEST_F(ValueOriginTest, ARestoreThatHasTheTurnIsOne) {
  Create();
  ASSERT_OK_AND_ASSIGN(const ImportLock lock, ImportLock::BeginRestore(model_));
  EXPECT_EQ(model_->state().origin(), ValueOrigin::kRestored);
}

TEST_F(ValueOriginTest, AChangeThatBreaksOffLosesThem) {
  Create();
  EXPECT_FALSE(model_->changes().Import({}, [] { return absl::InternalError("broke off"); }).ok());
  EXPECT_EQ(model_->state().origin(), ValueOrigin::kLost);
  ASSERT_OK(Restore(3));
  EXPECT_EQ(model_->state().origin(), ValueOrigin::kRestored);
}

TEST_F(ValueOriginTest, AnAnnouncedImportThatDiesWithTheServerLeavesNothingToLose) {
  Create(kAnnounced);
  FakeKeptStore left;
  ASSERT_OK(Write(*model_, [&] { CopyKept(*kept_, left); }));
  model_ = nullptr;
  StartAfter(left);
  EXPECT_THAT(world_->store().Find("m"), StatusIs(absl::StatusCode::kNotFound));
  Create(kAnnounced);
  ExpectOrigin(ValueOrigin::kImporting);
}

TEST_F(ValueOriginTest, AnImportOverOtherValuesThatDiesWithTheServerLosesThem) {
  Create(kAnnounced);
  ASSERT_OK(Write(*model_));
  FakeKeptStore left;
  ASSERT_OK(Write(*model_, [&] { CopyKept(*kept_, left); }));
  model_ = nullptr;
  StartAfter(left);
  EXPECT_THAT(world_->store().Find("m"), StatusIs(absl::StatusCode::kDataLoss));
}

// --- Deletions that a client asked for

TEST_F(ValueOriginTest, AModelKnowsTheLastDeletionOfItsName) {
  Create();
  EXPECT_EQ(model_->state().deletion(), 0);
  for (const int64_t serial : {1, 2}) {
    ASSERT_OK(world_->store().Delete("m", ""));
    model_ = nullptr;
    Start();
    Create();
    EXPECT_EQ(model_->state().deletion(), serial);
    ExpectOrigin(ValueOrigin::kInitial);
    EXPECT_EQ(model_->state().deletion(), serial) << "at the next server";
  }
}

TEST_F(ValueOriginTest, AServerThatDiesBetweenMarkAndDeletionHasTheModelAsItWas) {
  Create();
  FakeKeptStore left;
  ASSERT_OK(DeletionMarks(kept_.get()).Add("m"));
  CopyKept(*kept_, left);
  model_ = nullptr;
  StartAfter(left);
  ASSERT_OK_AND_ASSIGN(model_, world_->store().Find("m"));
  EXPECT_EQ(model_->state().deletion(), 0);
}

}  // namespace
}  // namespace paramshard::server
