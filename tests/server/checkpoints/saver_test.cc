#include "server/checkpoints/saver.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/checkpoint/reader.h"
#include "common/checkpoint/step_folder.h"
#include "common/checkpoint/tensor_key.h"
#include "common/checkpoint/verification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/models/import_lock.h"
#include "server/models/inspection.h"
#include "tests/server/base/manual_clock.h"
#include "tests/server/base/simulated_disk.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/server/models/model_fixture.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kLong = absl::Seconds(30);

// A disk that is full, or that stands still.
class SwitchedCalls final : public QuickCalls {
 public:
  std::atomic<bool> is_full = false;

  // Writes wait from now on, until Resume.
  void Hold() { held_ = true; }
  void Resume() { resumed_.Notify(); }
  void AwaitWrite() { writing_.WaitForNotificationWithTimeout(kLong); }

  ssize_t Pwrite(int fd, const void* data, size_t size_bytes, int64_t offset_bytes) override {
    if (held_) {
      if (!met_.exchange(true)) writing_.Notify();
      resumed_.WaitForNotification();
    }
    if (!is_full) return DiskCalls::Pwrite(fd, data, size_bytes, offset_bytes);
    errno = ENOSPC;
    return -1;
  }

 private:
  std::atomic<bool> held_ = false, met_ = false;
  absl::Notification writing_, resumed_;
};

// All that one can read of a model's state.
struct Values {
  std::vector<std::vector<float>> tensors;  // masters and moments, by unit

  friend bool operator==(const Values&, const Values&) = default;
};

class SaverTest : public ModelTest {
 protected:
  // No model yet: tests say how it is saved.
  void SetUp() override {}
  // Savers go before what they use.
  void TearDown() override { CloseWorld(); }

  void OpenSaved(const SavePolicy& policy, TestWorld::Options world = {}) {
    MakeSavers(policy);
    world.savers = savers_.get();
    Open(TestSpec(), world);
  }
  void MakeSavers(const SavePolicy& policy) {
    savers_ = std::make_unique<Savers>(Saver::Options{.root = root_.path(),
                                                      .policy = policy,
                                                      .calls = &calls_,
                                                      .clock = &clock_,
                                                      .now = [] { return absl::FromUnixSeconds(7); },
                                                      .before_copy = [this](int rank) { before_copy_(rank); }});
  }
  // The next server, which takes the model over from the present one.
  void TakeOver(const SavePolicy& policy, FakeKeptStore& kept) {
    CloseWorld();
    MakeSavers(policy);
    world_ = std::make_unique<TestWorld>(
        TestWorld::Options{.moves = {.moves = true}, .savers = savers_.get(), .kept = &kept});
    ASSERT_OK(world_->store().TakeOver().status());
    ASSERT_OK_AND_ASSIGN(model_, world_->store().Find("m"));
  }
  ModelSaver& saver() { return *model_->saver(); }

  // A save by call, and its end.
  SaveRecord Save() {
    auto record = saver().Request();
    EXPECT_OK(record);
    return record.ok() ? Await(record->number) : SaveRecord();
  }
  SaveRecord Await(int64_t number) {
    auto record = saver().Await(number, SteadyDeadline(kLong));
    EXPECT_OK(record);
    EXPECT_TRUE(IsOver(record->state));
    return *std::move(record);
  }
  SaveRecord AwaitLast() { return Await(saver().records().back().number); }

  Values State() const {
    Values values;
    for (int unit = 0; unit < 3; ++unit) {
      for (const StateTensor tensor : {StateTensor::kMaster, StateTensor::kFirstMoment, StateTensor::kSecondMoment}) {
        values.tensors.push_back(Read(unit, tensor));
      }
    }
    return values;
  }
  // Every byte has been checked.
  Values Saved(const std::string& path) const {
    EXPECT_TRUE(checkpoint::VerifyCheckpoint(path, {.owner = geteuid()}, [](int64_t, int64_t) {}).ok());
    Values values;
    const auto reader = checkpoint::Reader::Open(path, {.owner = geteuid()});
    EXPECT_OK(reader);
    for (int unit = 0; unit < 3; ++unit) {
      for (const checkpoint::ArrayKind kind : {checkpoint::ArrayKind::kMaster, checkpoint::ArrayKind::kFirstMoment,
                                               checkpoint::ArrayKind::kSecondMoment}) {
        const ParameterSpec& spec = reader->spec().units[unit].parameters[0];
        std::vector<float>& rows = values.tensors.emplace_back(spec.rows() * spec.columns());
        EXPECT_OK(reader->ReadRows(unit, 0, kind, {0, spec.rows()},
                                   absl::MakeSpan(reinterpret_cast<uint8_t*>(rows.data()), rows.size() * 4)));
      }
    }
    return values;
  }
  std::vector<std::string> StepFolders() const { return *checkpoint::ListStepFolders(ModelFolder(root_.path(), "m")); }
  std::vector<int64_t> Steps(SaveState state) {
    std::vector<int64_t> steps;
    for (const SaveRecord& record : saver().records()) {
      if (record.state == state) steps.push_back(record.step);
    }
    return steps;
  }

  const test::TemporaryDirectory root_;
  SwitchedCalls calls_;
  ManualClock clock_;
  std::function<void(int rank)> before_copy_ = [](int) {};
  std::unique_ptr<Savers> savers_;
};

TEST_F(SaverTest, ASaveHoldsStateNumbersAndClientStatesOfTheLastCommit) {
  OpenSaved({});
  Attach();
  Step();
  Step();
  const SaveRecord record = Save();
  ASSERT_OK(record.status);
  EXPECT_EQ(record.state, SaveState::kPublished);
  EXPECT_EQ(record.step, 2);
  EXPECT_EQ(record.reason, SaveReason::kCall);
  EXPECT_EQ(record.history, model_->state().history().id);
  EXPECT_GE(record.size_bytes, record.written_bytes);
  EXPECT_GT(record.written_bytes, 0);
  EXPECT_EQ(Saved(record.path), State());
  ASSERT_OK_AND_ASSIGN(const auto reader, checkpoint::Reader::Open(record.path, {}));
  EXPECT_EQ(reader.common().version, 2);
  EXPECT_EQ(reader.common().step_counts[0], 2);
  EXPECT_EQ(reader.common().step_counts[1], 0);
  EXPECT_TRUE(reader.common().last_answer.has_value());
  EXPECT_THAT(reader.ClientState(1), IsOkAndHolds(std::string("rank 1, commit 2")));
  EXPECT_EQ(reader.manifest().saved_at, absl::FromUnixSeconds(7));
}

TEST_F(SaverTest, AModelWithoutTrainersIsSavedToo) {
  OpenSaved({});
  const SaveRecord record = Save();
  EXPECT_EQ(record.state, SaveState::kPublished) << record.status;
  EXPECT_EQ(Saved(record.path), State());
}

TEST_F(SaverTest, CommitsWhoseNumberIsAMultipleAreSaved) {
  OpenSaved({.every_commits = 3, .keep = {.newest = 10}});
  Attach();
  for (int i = 0; i < 7; ++i) {
    Step();
    if (!saver().records().empty()) AwaitLast();
  }
  EXPECT_THAT(Steps(SaveState::kPublished), ElementsAre(3, 6));
  EXPECT_EQ(saver().counts().published, 2);
  EXPECT_EQ(saver().counts().skipped, 0);
  EXPECT_EQ(saver().records()[0].reason, SaveReason::kCommits);
}

TEST_F(SaverTest, TheFirstCommitAfterTheTimeIsSaved) {
  OpenSaved({.every_time = absl::Minutes(10)});
  Attach();
  clock_.Advance(absl::Minutes(9));
  Step();
  EXPECT_THAT(saver().records(), IsEmpty());
  clock_.Advance(absl::Minutes(1));
  Step();
  AwaitLast();
  Step();
  EXPECT_THAT(Steps(SaveState::kPublished), ElementsAre(2));
  EXPECT_EQ(saver().records()[0].reason, SaveReason::kTime);
}

TEST_F(SaverTest, TrainersAskForASaveOfTheirCommit) {
  OpenSaved({});
  Attach();
  Step();
  Commit([](v1::Commit& commit) { commit.set_save(true); });
  EXPECT_EQ(AwaitLast().step, 2);
  Step();
  EXPECT_EQ(saver().counts().published, 1);
  EXPECT_EQ(saver().records()[0].reason, SaveReason::kTrainer);
}

TEST_F(SaverTest, ASkippedCommitIsSavedWithItsNumbers) {
  OpenSaved({.every_commits = 1});
  Attach();
  Push(kW, [](int) { return std::numeric_limits<float>::infinity(); });
  Commit();
  const SaveRecord record = AwaitLast();
  ASSERT_OK_AND_ASSIGN(const auto reader, checkpoint::Reader::Open(record.path, {}));
  EXPECT_EQ(reader.common().commit_number, 1);
  EXPECT_EQ(reader.common().version, 0);
  EXPECT_EQ(reader.common().skipped, 1);
}

TEST_F(SaverTest, TrainingGoesOnWhileFilesAreWritten) {
  OpenSaved({.every_commits = 2});
  Attach();
  Step();
  calls_.Hold();
  Step();
  const Values at_two = State();
  calls_.AwaitWrite();
  for (int i = 0; i < 3; ++i) Step();
  EXPECT_EQ(saver().records().front().state, SaveState::kWriting);
  EXPECT_THAT(saver().Request().status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the save of step 2 is in progress")));
  calls_.Resume();
  const SaveRecord record = Await(1);
  EXPECT_EQ(record.step, 2);
  EXPECT_EQ(Saved(record.path), at_two);
  EXPECT_NE(State(), at_two);
  EXPECT_THAT(Steps(SaveState::kSkipped), ElementsAre(4));
  EXPECT_EQ(saver().counts().skipped, 1);
}

// The copy begins when nothing else holds the step back: without the wait it would never begin.
TEST_F(SaverTest, TheNextStepWaitsForTheCopy) {
  std::atomic<bool> was_awaited = false;
  before_copy_ = [this, &was_awaited](int) {
    for (const SteadyTime end = SteadyDeadline(kLong); !was_awaited;) {
      if (model_->copies().is_awaited()) was_awaited = true;
      ASSERT_LT(SteadyNow(), end);
      std::this_thread::yield();
    }
  };
  OpenSaved({.every_commits = 2});
  Attach();
  Step();
  Step();
  const Values at_two = State();
  Step();
  const SaveRecord record = Await(1);
  EXPECT_EQ(Saved(record.path), at_two);
  EXPECT_NE(State(), at_two);
}

TEST_F(SaverTest, AFullDiskAbandonsTheSaveAndTrainingGoesOn) {
  OpenSaved({});
  Attach();
  Step();
  calls_.is_full = true;
  const SaveRecord record = Save();
  EXPECT_EQ(record.state, SaveState::kAbandoned);
  EXPECT_THAT(record.status, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(record.path, "");
  EXPECT_THAT(StepFolders(), IsEmpty());
  Step();
  calls_.is_full = false;
  EXPECT_EQ(Save().state, SaveState::kPublished);
  EXPECT_EQ(saver().counts().abandoned, 1);
  EXPECT_EQ(saver().counts().published, 1);
}

TEST_F(SaverTest, ASaveThatTakesTooLongIsAbandoned) {
  // Both ranks together, for who waits gives up some seconds behind the end of that time.
  before_copy_ = [this](int) { clock_.Advance(absl::Seconds(30)); };
  OpenSaved({.timeout = absl::Minutes(1)});
  const SaveRecord record = Save();
  EXPECT_EQ(record.state, SaveState::kAbandoned);
  EXPECT_THAT(record.status, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("timed out after 1m")));
}

TEST_F(SaverTest, AStateThatIsSavedIsAnAnswerAndNoFailure) {
  OpenSaved({});
  const SaveRecord first = Save();
  EXPECT_EQ(first.state, SaveState::kPublished);
  const SaveRecord again = Save();
  EXPECT_EQ(again.state, SaveState::kAlreadySaved);
  EXPECT_OK(again.status);
  EXPECT_EQ(again.path, first.path);
  EXPECT_EQ(again.size_bytes, first.size_bytes);
  EXPECT_EQ(saver().counts().published, 1);
  EXPECT_EQ(saver().counts().abandoned, 0);
  Attach();
  Step();
  EXPECT_EQ(Save().state, SaveState::kPublished) << "of the next commit";
}

// Checkpoints that were removed by hand are saved again.
TEST_F(SaverTest, AStateWhoseCheckpointWasRemovedIsSavedAgain) {
  OpenSaved({});
  std::filesystem::remove_all(Save().path);
  EXPECT_EQ(Save().state, SaveState::kPublished);
}

// Parameter: the file of a checkpoint that is cut short.
class DamagedNameTest : public SaverTest, public testing::WithParamInterface<std::string> {};

TEST_P(DamagedNameTest, AStateWhoseNameADamagedCheckpointHasIsSavedAgain) {
  OpenSaved({});
  const std::string path = Save().path;
  std::filesystem::resize_file(path + "/" + GetParam(), 10);
  const SaveRecord record = Save();
  EXPECT_EQ(record.state, SaveState::kPublished);
  EXPECT_EQ(record.path, path);
  EXPECT_EQ(Saved(path), State());
  std::vector<std::string> damaged;
  for (const std::string& name : NamesIn(std::filesystem::path(path).parent_path())) {
    if (name.find(".damaged-") != name.npos) damaged.push_back(name);
  }
  EXPECT_EQ(damaged.size(), 1u) << "it is kept beside it";
  EXPECT_EQ(Save().state, SaveState::kAlreadySaved);
}

INSTANTIATE_TEST_SUITE_P(, DamagedNameTest,
                         testing::Values(checkpoint::kManifestFileName, checkpoint::kSpecFileName,
                                         checkpoint::kCommonFileName, "rank-00000-of-00002.safetensors"),
                         [](const auto& info) { return info.param.substr(0, info.param.find_first_of(".-")); });

TEST_F(SaverTest, OfManySavesOneThatIsSkippedIsCountedAsThat) {
  OpenSaved({.every_commits = 1});
  Attach();
  constexpr int kRemembered = 64;
  for (int i = 1; i < kRemembered; ++i) {
    Step();
    ASSERT_EQ(AwaitLast().state, SaveState::kPublished);
  }
  calls_.Hold();
  Step();
  calls_.AwaitWrite();
  for (int i = 0; i < 2; ++i) Step();
  EXPECT_EQ(saver().records().size(), kRemembered);
  EXPECT_THAT(Steps(SaveState::kWriting), ElementsAre(kRemembered));
  EXPECT_THAT(Steps(SaveState::kSkipped), ElementsAre(kRemembered + 2)) << "the newest one";
  calls_.Resume();
  EXPECT_EQ(Await(kRemembered).state, SaveState::kPublished);
  EXPECT_EQ(saver().counts().skipped, 2);
  EXPECT_EQ(saver().counts().abandoned, 0);
}

TEST_F(SaverTest, WhoWaitsForADiskThatDoesNotAnswerIsTold) {
  OpenSaved({.timeout = absl::Minutes(1)});
  calls_.Hold();
  ASSERT_OK_AND_ASSIGN(const SaveRecord begun, saver().Request());
  calls_.AwaitWrite();
  clock_.Advance(absl::Seconds(66));
  ASSERT_OK_AND_ASSIGN(const SaveRecord late, saver().Await(begun.number, SteadyDeadline(kLong)));
  EXPECT_EQ(late.state, SaveState::kWriting);
  EXPECT_THAT(late.status, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("does not come back")));
  // When it answers at last, nobody counts on it any more.
  calls_.Resume();
  while (!IsOver(saver().records().back().state)) std::this_thread::yield();
  EXPECT_EQ(saver().records().back().state, SaveState::kAbandoned);
  EXPECT_EQ(Save().state, SaveState::kPublished);
}

TEST_F(SaverTest, ADrainSavesAgainWhatHasGoneSinceItWasSaved) {
  OpenSaved({});
  Attach();
  Step();
  const std::string path = Save().path;
  std::filesystem::remove(path + "/rank-00001-of-00002.safetensors");
  world_->store().Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"));
  EXPECT_EQ(saver().records().back().reason, SaveReason::kDrain);
  EXPECT_EQ(AwaitLast().state, SaveState::kPublished);
  EXPECT_EQ(Saved(path), State());
  EXPECT_FALSE(world_->store().left_unsaved());
}

TEST_F(SaverTest, ADrainThatCannotSaveSaysSo) {
  OpenSaved({});
  Attach();
  Step();
  calls_.is_full = true;
  world_->store().Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"));
  EXPECT_EQ(AwaitLast().state, SaveState::kAbandoned);
  EXPECT_TRUE(world_->store().left_unsaved());
}

TEST_F(SaverTest, DamagedCheckpointsAreNeitherCountedNorDeleted) {
  OpenSaved({.every_commits = 1, .keep = {.newest = 2}});
  Attach();
  std::vector<std::string> paths;
  for (int i = 0; i < 4; ++i) {
    Step();
    paths.push_back(AwaitLast().path);
    // The second lacks a file, and the third a part of one.
    if (i == 1) std::filesystem::remove(paths.back() + "/common.safetensors");
    if (i == 2) std::filesystem::resize_file(paths.back() + "/rank-00000-of-00002.safetensors", 100);
  }
  for (const std::string& path : paths) EXPECT_TRUE(std::filesystem::exists(path)) << path;
  Step();
  AwaitLast();
  EXPECT_FALSE(std::filesystem::exists(paths[0])) << "two newer ones are whole";
  for (int i = 1; i < 4; ++i) EXPECT_TRUE(std::filesystem::exists(paths[i])) << paths[i];
}

TEST_F(SaverTest, AFolderThatIsRemovedOrReplacedIsLockedAgain) {
  OpenSaved({.every_commits = 1});
  Attach();
  Step();
  const std::filesystem::path folder = std::filesystem::path(AwaitLast().path).parent_path();
  std::filesystem::remove_all(folder);
  Step();
  EXPECT_EQ(AwaitLast().state, SaveState::kPublished);
  std::filesystem::rename(folder, folder.string() + ".old");
  std::filesystem::create_directory(folder);
  {
    // Another daemon has it now.
    ASSERT_OK_AND_ASSIGN(const auto other, Publisher::Open(&calls_, root_.path(), model_->spec()));
    Step();
    const SaveRecord record = AwaitLast();
    EXPECT_EQ(record.state, SaveState::kAbandoned);
    EXPECT_THAT(record.status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another daemon")));
  }
  Step();
  EXPECT_EQ(AwaitLast().state, SaveState::kPublished);
  ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  Step();
  EXPECT_THAT(AwaitLast().status, StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("chmod go-w")));
}

TEST_F(SaverTest, NothingIsDeletedWhileACheckpointIsRestored) {
  OpenSaved({.every_commits = 1, .keep = {.newest = 1}});
  Attach();
  Step();
  const std::string first = AwaitLast().path;
  {
    ASSERT_OK_AND_ASSIGN(const ImportLock lock, ImportLock::BeginRestore(model_));
    Step();
    EXPECT_EQ(AwaitLast().state, SaveState::kPublished);
    EXPECT_TRUE(std::filesystem::exists(first));
  }
  Step();
  EXPECT_EQ(AwaitLast().state, SaveState::kPublished);
  EXPECT_FALSE(std::filesystem::exists(first)) << "the next save deletes it";
}

TEST_F(SaverTest, WhatAServerBeforeHasSavedIsSavedAlready) {
  FakeKeptStore kept;
  OpenSaved({}, {.moves = {.moves = true}, .kept = &kept});
  Attach();
  Step();
  Step();
  const SaveRecord before = Save();
  ASSERT_EQ(before.state, SaveState::kPublished);

  TakeOver({}, kept);
  world_->store().Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"));
  EXPECT_THAT(saver().records(), IsEmpty()) << "nothing is left to be saved";

  TakeOver({}, kept);
  const SaveRecord record = Save();
  EXPECT_EQ(record.state, SaveState::kAlreadySaved);
  EXPECT_EQ(record.path, before.path);
  Attach();
  Step();
  world_->store().Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"));
  EXPECT_EQ(AwaitLast().state, SaveState::kPublished) << "a commit that no save has";
  EXPECT_EQ(saver().records().back().step, 3);
}

TEST_F(SaverTest, ADrainSavesACommitThatTheServerBeforeHasNotSaved) {
  FakeKeptStore kept;
  OpenSaved({}, {.moves = {.moves = true}, .kept = &kept});
  Attach();
  Step();
  ASSERT_EQ(Save().state, SaveState::kPublished);
  Step();
  TakeOver({}, kept);
  world_->store().Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"));
  ASSERT_EQ(saver().records().size(), 1);
  EXPECT_EQ(AwaitLast().state, SaveState::kPublished);
  EXPECT_EQ(AwaitLast().step, 2);
}

TEST_F(SaverTest, AModelIsTakenOverWhateverIsWrongWithItsFolderAndSavedOnceThatIsMended) {
  FakeKeptStore kept;
  OpenSaved({}, {.moves = {.moves = true}, .kept = &kept});
  Attach();
  Step();
  using std::filesystem::perms;
  const std::string folder = ModelFolder(root_.path(), "m");
  std::filesystem::permissions(folder, perms::all);
  TakeOver({}, kept);
  EXPECT_THAT(saver().counts().folder, StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(folder)));
  const SaveRecord refused = Save();
  EXPECT_EQ(refused.state, SaveState::kAbandoned);
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(folder)));
  Attach();
  Step();
  std::filesystem::permissions(folder, perms::owner_all);
  EXPECT_EQ(Save().state, SaveState::kPublished);
  EXPECT_OK(saver().counts().folder);
}

TEST_F(SaverTest, AModelWhoseFolderIsWrongIsNotMade) {
  MakeSavers({});
  const std::string folder = ModelFolder(root_.path(), "m");
  std::filesystem::create_directories(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  TestWorld world({.savers = savers_.get()});
  EXPECT_THAT(world.store().CreateOrJoin(Parse(TestSpec())).status(), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(SaverTest, WhatCouldNotBeRemovedIsSaidUntilItIs) {
  const std::string stray = ModelFolder(root_.path(), "m") + "/" + checkpoint::TemporaryFolderName(7, 7, 7) + "/folder";
  std::filesystem::create_directories(stray);
  testing::internal::CaptureStderr();
  OpenSaved({});
  const auto is_said = StatusIs(testing::_, HasSubstr(checkpoint::TemporaryFolderName(7, 7, 7)));
  EXPECT_THAT(saver().counts().leftovers, is_said);
  EXPECT_EQ(Save().state, SaveState::kPublished);
  EXPECT_THAT(saver().counts().leftovers, is_said);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("warning failed to delete leftovers of saves model=m"));
  EXPECT_EQ(log.find("failed to delete leftovers"), log.rfind("failed to delete leftovers")) << "once";
  std::filesystem::remove(stray);
  Attach();
  Step();
  EXPECT_EQ(Save().state, SaveState::kPublished);
  EXPECT_OK(saver().counts().leftovers);
}

TEST_F(SaverTest, OldCheckpointsAreDeletedAsThePolicySays) {
  OpenSaved({.every_commits = 1, .keep = {.newest = 2, .every = 2}});
  Attach();
  for (int i = 0; i < 5; ++i) {
    Step();
    AwaitLast();
  }
  ASSERT_OK_AND_ASSIGN(const auto steps, checkpoint::ListSteps(ModelFolder(root_.path(), "m")));
  std::vector<int64_t> kept;
  for (const auto& step : steps) kept.push_back(step.name.step);
  EXPECT_THAT(kept, ElementsAre(2, 4, 5));
}

TEST_F(SaverTest, ADrainSavesWhatNoSaveHas) {
  OpenSaved({});
  Attach();
  Step();
  world_->store().Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"));
  const SaveRecord record = AwaitLast();
  EXPECT_EQ(record.reason, SaveReason::kDrain);
  EXPECT_EQ(record.step, 1);
  EXPECT_EQ(Saved(record.path), State());
  EXPECT_TRUE(saver().IsDrained());
  world_->store().Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"));
  EXPECT_EQ(saver().records().size(), 1) << "the step is saved";
}

TEST_F(SaverTest, ADrainThatCouldNotSaveIsKnown) {
  OpenSaved({});
  EXPECT_TRUE(saver().IsDrained()) << "there is nothing to save";
  Attach();
  Step();
  EXPECT_FALSE(saver().IsDrained());
  calls_.is_full = true;
  world_->store().Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"));
  EXPECT_EQ(AwaitLast().state, SaveState::kAbandoned);
  EXPECT_FALSE(saver().IsDrained());
}

TEST_F(SaverTest, ADrainSavesNothingOfAModelWithoutCommits) {
  OpenSaved({});
  world_->store().Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"));
  EXPECT_THAT(saver().records(), IsEmpty());
}

TEST_F(SaverTest, ADrainSavesNothingWhereItIsToldSo) {
  OpenSaved({.on_drain = false});
  Attach();
  Step();
  EXPECT_TRUE(saver().IsDrained());
  world_->store().Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"));
  EXPECT_THAT(saver().records(), IsEmpty());
}

TEST_F(SaverTest, ADrainThatIsToSaveNothingAwaitsWhatIsUnderWay) {
  constexpr auto kUnderWay = ModelStore::DrainSaves::kUnderWay;
  absl::Notification go_on;
  before_copy_ = [&go_on](int) { go_on.WaitForNotification(); };
  OpenSaved({});
  Attach();
  Step();
  ASSERT_OK(saver().Request());
  std::thread drain(
      [this] { world_->store().Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"), kUnderWay); });
  go_on.Notify();
  drain.join();
  ASSERT_EQ(saver().records().size(), 1);
  EXPECT_EQ(saver().records()[0].state, SaveState::kPublished);
}

TEST_F(SaverTest, ADrainAwaitsWhatIsUnderWayAlsoWhereItIsToldToSaveNothing) {
  for (const auto saves : {ModelStore::DrainSaves::kUnsaved, ModelStore::DrainSaves::kUnderWay}) {
    absl::Notification go_on;
    absl::Notification drained;
    before_copy_ = [&go_on](int) { go_on.WaitForNotification(); };
    OpenSaved({.on_drain = false});
    Attach();
    Step();
    ASSERT_OK(saver().Request());
    std::thread drain([&] {
      world_->store().Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"), saves);
      drained.Notify();
    });
    EXPECT_FALSE(drained.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
    go_on.Notify();
    drain.join();
    ASSERT_EQ(saver().records().size(), 1);
    EXPECT_EQ(saver().records()[0].state, SaveState::kPublished);
    CloseWorld();
  }
}

TEST_F(SaverTest, ADrainThatIsToSaveNothingBeginsNoSave) {
  OpenSaved({});
  Attach();
  Step();
  world_->store().Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"), ModelStore::DrainSaves::kUnderWay);
  EXPECT_THAT(saver().records(), IsEmpty());
}

TEST_F(SaverTest, ImportsAndDeletionsAreRefusedWhileTheStateIsCopied) {
  absl::Notification go_on;
  before_copy_ = [&go_on](int) { go_on.WaitForNotification(); };
  OpenSaved({}, {.step_timeout = absl::Milliseconds(1)});
  ASSERT_OK_AND_ASSIGN(const SaveRecord begun, saver().Request());
  const auto is_refused = [](const char* why) { return StatusIs(absl::StatusCode::kUnavailable, HasSubstr(why)); };
  EXPECT_THAT(model_->changes().Import({}, [] { return absl::OkStatus(); }).status(), is_refused("is being copied"));
  EXPECT_THAT(world_->store().Delete("m", ""), is_refused("is in progress"));
  go_on.Notify();
  EXPECT_EQ(Await(begun.number).state, SaveState::kPublished);
  EXPECT_OK(model_->changes().Import({}, [] { return absl::OkStatus(); }));
  EXPECT_OK(world_->store().Delete("m", ""));
}

TEST_F(SaverTest, AModelThatIsDeletedLeavesItsFolderToTheNextOfItsName) {
  OpenSaved({});
  EXPECT_EQ(Save().state, SaveState::kPublished);
  const std::shared_ptr<Model> held = model_;
  ASSERT_OK(world_->store().Delete("m", ""));
  EXPECT_THAT(held->saver()->Request().status(), StatusIs(absl::StatusCode::kUnavailable));
  model_ = world_->Create(TestSpec());
  EXPECT_EQ(Save().state, SaveState::kPublished) << "another history";
  EXPECT_EQ(StepFolders().size(), 2);
}

TEST_F(SaverTest, AModelThatGoesAbandonsItsSave) {
  OpenSaved({});
  calls_.Hold();
  ASSERT_OK(saver().Request());
  calls_.AwaitWrite();
  std::thread resume([this] { calls_.Resume(); });
  CloseWorld();
  resume.join();
  EXPECT_THAT(*checkpoint::ListTemporaryFolders(ModelFolder(root_.path(), "m")), IsEmpty());
}

TEST_F(SaverTest, AFolderThatAnotherDaemonHoldsIsRefusedWhenTheModelIsCreated) {
  OpenSaved({});
  TestWorld other({.savers = savers_.get()});
  EXPECT_THAT(other.store().CreateOrJoin(Parse(TestSpec())).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("lock")));
}

TEST_F(SaverTest, MemoryForCopiesIsCountedAndLimited) {
  OpenSaved({});
  EXPECT_GT(saver().image_bytes(), 0);
  EXPECT_THAT(CountMemory(*model_), Contains(Field(&MemoryUse::memory_class, "save_buffers")));
  int64_t without = 0;
  for (const MemoryUse& use : CountMemory(*model_)) {
    if (use.memory_class != "save_buffers") without += use.size_bytes;
  }
  TestWorld small({.memory_limit_bytes = without + saver().image_bytes() / 2, .savers = savers_.get()});
  EXPECT_THAT(small.store().CreateOrJoin(Parse(TestSpec())).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("copy to be saved")));
}

TEST_F(ModelTest, ACommitThatAsksForASaveEndsTheEpochWhereNothingIsSaved) {
  Attach();
  trainer(0).Send([this] {
    v1::Command command;
    command.set_number(trainer(0).next_command());
    command.mutable_commit()->set_commit_number(1);
    command.mutable_commit()->add_groups();
    command.mutable_commit()->set_save(true);
    return command;
  }());
  ExpectEnded(absl::StatusCode::kFailedPrecondition, HasSubstr("--save-dir"));
}

}  // namespace
}  // namespace paramshard::server
