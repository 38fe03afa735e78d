// Models that another store takes over: what a server leaves behind when it dies is a copy of its kept memory at that
// moment.

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/kept_memory.h"
#include "server/models/inspection.h"
#include "server/models/model_saver.h"
#include "tests/server/base/manual_clock.h"
#include "tests/server/device/faulty_device.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/server/models/left_memory.h"
#include "tests/server/models/model_fixture.h"
#include "tests/server/models/watched_device.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Amaxes with and without a history, a master with a remainder, and FP8 moments; two moments, one and none.
v1::ModelSpec Spec() {
  v1::ModelSpec spec = MakeSpec("m", {MakeUnit("w", {MakeParameter("w.w", {6, 4})}),
                                      MakeUnit("d", {MakeParameter("d.w", {64, 48}, v1::FORMAT_FP8_TENSOR_DELAYED)}),
                                      MakeUnit("c", {MakeParameter("c.w", {40, 32}, v1::FORMAT_FP8_TENSOR_CURRENT)}),
                                      MakeUnit("r", {MakeParameter("r.w", {33, 16}, v1::FORMAT_BF16)})});
  for (v1::UnitSpec& unit : *spec.mutable_units()) {
    unit.mutable_parameters(0)->mutable_initial_value()->mutable_normal()->set_standard_deviation(1);
  }
  const v1::Optimizer optimizers[] = {v1::OPTIMIZER_ADAMW, v1::OPTIMIZER_LION, v1::OPTIMIZER_SGD_MOMENTUM,
                                      v1::OPTIMIZER_SGD};
  for (int i = 0; i < spec.units_size(); ++i) {
    spec.add_groups()->set_optimizer(optimizers[i]);
    spec.mutable_units(i)->mutable_parameters(0)->set_group(i);
  }
  spec.mutable_units(2)->mutable_parameters(0)->set_exp_avg_type(v1::MOMENT_TYPE_FP8);
  spec.mutable_units(3)->mutable_parameters(0)->set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  spec.set_gather_slots(2);
  spec.set_gradient_slots(1);
  return spec;
}
constexpr int kUnits = 4;

// Hears which commits are answered, which of them are to be saved, and when it is stopped. It saves nothing.
class HearingSaver final : public ModelSaver {
 public:
  using Heard = std::vector<std::pair<int64_t, bool>>;
  HearingSaver(Heard* heard, const std::function<void()>* on_committed, const std::function<void()>* before_stop)
      : heard_(heard), on_committed_(on_committed), before_stop_(before_stop) {}

  void OnCommitted(const CommitAnswer& answer, bool asked) override {
    heard_->emplace_back(answer.commit_number, asked);
    (*on_committed_)();
  }
  void OnSettled() override {}
  void OnMessage(const SaveMessage&) override {}
  void Stop() override { (*before_stop_)(); }
  absl::StatusOr<SaveRecord> Request() override { return absl::UnimplementedError("save"); }
  absl::StatusOr<SaveRecord> Await(int64_t, SteadyTime) const override { return absl::NotFoundError("save"); }
  absl::Status CheckIdle(absl::string_view) const override { return absl::OkStatus(); }
  void Drain(SteadyTime) override {}
  bool IsDrained() const override { return true; }
  std::vector<SaveRecord> records() const override { return {}; }
  SaveCounts counts() const override { return {}; }
  int64_t image_bytes() const override { return 0; }

 private:
  Heard* const heard_;
  const std::function<void()>* const on_committed_;
  const std::function<void()>* const before_stop_;
};

class HearingSavers final : public SaverSource {
 public:
  explicit HearingSavers(HearingSaver::Heard* heard) : heard_(heard) {}
  absl::StatusOr<std::vector<int64_t>> ImageBytes(const Layout&, const World& world) const override {
    return std::vector<int64_t>(world.devices.size());
  }
  absl::Duration drain_timeout() const override { return absl::ZeroDuration(); }
  absl::StatusOr<std::unique_ptr<ModelSaver>> Make(Model&, FolderTrouble) const override {
    return std::make_unique<HearingSaver>(heard_, &on_committed, &before_stop);
  }

  std::function<void()> on_committed = [] {};  // before the trainers have the answer
  std::function<void()> before_stop = [] {};

 private:
  HearingSaver::Heard* const heard_;
};

class KeptModelTest : public ModelTest {
 protected:
  void SetUp() override { Start(2); }
  // Objects that the world points to end before the fixture of models does.
  void TearDown() override { CloseWorld(); }

  // A server with `ranks` devices, in the place of the one before.
  void Start(int ranks) {
    CloseWorld();
    world_ = std::make_unique<TestWorld>(
        TestWorld::Options{.ranks = ranks,
                           .clock = clock_,
                           .moves = {.moves = true, .rule = {.most_bands = 5, .least_elements = 512}},
                           .make_device =
                               [this](int rank) {
                                 return std::make_unique<FaultyDevice>(
                                     std::make_unique<WatchedDevice>(MakeCpuDevice(rank), &hooks_), &faults_);
                               },
                           .savers = savers_,
                           .kept = kept_.get(),
                           .hooks = {.before_answer = [this] { return before_answer_.Call(), absl::OkStatus(); },
                                     .pause = [this](absl::Duration) { pause_(); }}});
  }
  void Create() { model_ = world_->Create(spec_); }
  static RestoredState FromStep7() {
    RestoredState restored;
    restored.source = {.kind = ChangeSource::Kind::kCheckpoint, .text = "/saves/m/step-7", .convert_moments = true};
    return restored;
  }
  // The next server, after one that was killed in the middle of such a restore.
  void CutOffARestore() {
    FakeKeptStore left;
    ASSERT_OK(
        model_->changes().Restore(FromStep7(), [&] { return CopyKept(*kept_, left), absl::OkStatus(); }).status());
    CloseWorld();
    kept_ = std::make_unique<FakeKeptStore>();
    CopyKept(left, *kept_);
    TakeOverCutOff();
  }
  // The next server, which is to make such a restore again.
  void TakeOverCutOff() {
    Start(2);
    ASSERT_OK_AND_ASSIGN(const auto cut_off, world_->store().TakeOver());
    ASSERT_EQ(cut_off.size(), 1u);
    EXPECT_EQ(cut_off[0].source, FromStep7().source);
    ASSERT_OK_AND_ASSIGN(model_, world_->store().Find("m"));
    EXPECT_EQ(cut_off[0].model, model_);
  }
  // The next server, after the end of this one.
  void TakeOver(int ranks = 2) {
    Start(ranks);
    ASSERT_OK_AND_ASSIGN(const auto cut_off, world_->store().TakeOver());
    EXPECT_THAT(cut_off, IsEmpty());
    ASSERT_OK_AND_ASSIGN(model_, world_->store().Find("m"));
  }
  // A step of the units with these numbers.
  void StepUnits(const std::vector<int>& units, float gradient) {
    for (const int unit : units) {
      Push(unit, [&](int rank) { return gradient * static_cast<float>(rank + unit + 1); });
    }
    const std::string data = absl::StrCat("for readers of ", model_->committed().commits.numbers().commit_number + 1);
    Commit([&](v1::Commit& commit) { commit.set_reader_data(data); });
  }
  void StepAll(float gradient) { StepUnits({0, 1, 2, 3}, gradient); }
  // Everything that the next commit depends on.
  std::string StateOf(const Model& model) const {
    std::string state = absl::StrCat(StateHash(model), " ", model.state().history().id.ToString(), " ",
                                     model.state().history().lineage.ToString());
    const CommitLog::State commits = model.committed().commits.state();
    absl::StrAppend(&state, " ", commits.numbers.commit_number, " ", commits.numbers.version, " ",
                    commits.numbers.skipped);
    if (commits.last_answer.has_value()) {
      absl::StrAppend(&state, " ", commits.last_answer->commit_number, " ", commits.last_answer->gradient_norm);
    }
    for (const std::string& client_state : commits.client_states) absl::StrAppend(&state, " '", client_state, "'");
    absl::StrAppend(&state, " '", commits.reader_data, "'");
    for (const ScalingBook::Record& record : model.committed().book.records()) {
      absl::StrAppend(&state, " ", record.amax, " ", record.scale, " ", record.is_fresh);
      if (!record.history.has_value()) continue;
      for (const float amax : record.history->amaxes) absl::StrAppend(&state, " ", amax);
    }
    for (const auto& shard : model.committed().shards) {
      std::vector<int64_t> steps(kUnits);
      shard->CollectSteps(absl::MakeSpan(steps));
      for (const int64_t step : steps) absl::StrAppend(&state, " ", step);
    }
    return state;
  }
  // Commits that the next ones must not differ in.
  std::string StateAfterMoreSteps() {
    Attach();
    return StateAfterTenSteps();
  }
  // By the trainers that there are.
  std::string StateAfterTenSteps() {
    for (int step = 0; step < 10; ++step) StepAll(step % 3 == 1 ? -0.5f : 0.25f * static_cast<float>(step + 1));
    return StateOf(*model_);
  }

  v1::ModelSpec spec_ = Spec();
  const Clock* clock_ = &Clock::Steady();
  std::function<void()> pause_ = [] {};
  DeviceFaults faults_;
  WatchedDevice::Hooks hooks_;
  Hook before_answer_;  // the commit is through, and not written down yet
  const SaverSource* savers_ = nullptr;
  std::unique_ptr<FakeKeptStore> kept_ = std::make_unique<FakeKeptStore>();
};

TEST_F(KeptModelTest, AModelGoesOnWithTheNextServer) {
  Create();
  Attach();
  StepAll(0.5f);
  StepUnits({1}, -2.0f);
  trainers_.clear();
  const std::string before = StateOf(*model_);
  const int64_t epoch = model_->trainers().activity().epoch;
  FakeKeptStore copy;
  CopyKept(*kept_, copy);
  const std::string expected = StateAfterMoreSteps();

  CloseWorld();
  kept_ = std::make_unique<FakeKeptStore>();
  CopyKept(copy, *kept_);
  TakeOver();
  EXPECT_EQ(StateOf(*model_), before);
  EXPECT_EQ(model_->trainers().activity().epoch, epoch);
  EXPECT_EQ(StateAfterMoreSteps(), expected);
}

// A next server that finds no memory: trainers have the memory of the server before mapped.
class KeptRoomTest : public KeptModelTest {
 protected:
  void SetUp() override {
    clock_ = &manual_clock_;
    Start(2);
    Create();
    Attach();
    StepAll(0.5f);
    trainers_.clear();
    state_ = StateOf(*model_);
  }
  void FailAllocation(int number) {
    faults_.allocations = 0;
    faults_.failing_allocation = number;
  }
  // Counts the allocations of a server that finds memory.
  int CountAllocations() {
    FailAllocation(0);
    TakeOver();
    return faults_.allocations;
  }

  ManualClock manual_clock_;
  std::string state_;
};

TEST_F(KeptRoomTest, AModelGoesOnWhenThereIsMemoryAgainWhereverThereWasNone) {
  const int allocations = CountAllocations();
  ASSERT_GT(allocations, 2);
  for (int number = 1; number <= allocations; ++number) {
    int pauses = 0;
    pause_ = [&] {
      ++pauses;
      FailAllocation(pauses == 1 ? number : 0);
    };
    FailAllocation(number);
    TakeOver();
    EXPECT_EQ(pauses, 2) << number;
    EXPECT_EQ(StateOf(*model_), state_) << number;
  }
  StateAfterMoreSteps();
}

TEST_F(KeptRoomTest, AStartThatFindsNoMemoryFailsInTimeAndTheModelStays) {
  const int allocations = CountAllocations();
  int pauses = 0;
  pause_ = [&] {
    ++pauses;
    manual_clock_.Advance(absl::Seconds(5));
    FailAllocation(allocations);
  };
  Start(2);
  FailAllocation(allocations);
  EXPECT_THAT(world_->store().TakeOver(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("model m")));
  EXPECT_EQ(pauses, 4) << "20 s";
  EXPECT_THAT(world_->store().List(), IsEmpty());
  EXPECT_THAT(world_->store().lost().List(), IsEmpty());
  FailAllocation(0);
  TakeOver();
  EXPECT_EQ(StateOf(*model_), state_);
}

TEST_F(KeptRoomTest, WhatIsNoMatterOfMemoryIsNotTriedAgain) {
  pause_ = [] { ADD_FAILURE() << "it waits"; };
  Start(3);
  EXPECT_THAT(world_->store().TakeOver(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(KeptModelTest, AModelThatWasNeverTrainedGoesOnToo) {
  Create();
  const std::string before = StateOf(*model_);
  TakeOver();
  EXPECT_EQ(StateOf(*model_), before);
  TakeOver();
  EXPECT_EQ(StateOf(*model_), before);
  Attach();
  StepAll(0.5f);
}

// One rank, so that no thread writes while what it leaves is copied.
class CutModelTest : public KeptModelTest {
 protected:
  void SetUp() override { Start(1); }

  // The server dies when `hook` is called in the second commit; what the next one has is the state of the first commit
  // or of the second, and ten steps behind the second it is where a server is that did not die.
  enum class Is { kFirst, kSecond };
  void ExpectGoesOn(Hook& hook, Is is) {
    Create();
    Attach();
    StepAll(0.5f);
    const std::string first = StateOf(*model_);
    FakeKeptStore left;
    hook.Set([&] { CopyKept(*kept_, left); });
    MakeSecondStep();
    hook.Set(nullptr);
    ASSERT_FALSE(left.TakeAll()->empty()) << "the commit did not come there";
    const std::string second = StateOf(*model_);
    const std::string expected = StateAfterTenSteps();
    trainers_.clear();
    CloseWorld();
    kept_ = std::make_unique<FakeKeptStore>();
    CopyKept(left, *kept_);
    TakeOver(1);
    EXPECT_EQ(StateOf(*model_), is == Is::kFirst ? first : second);
    Attach();
    if (is == Is::kFirst) MakeSecondStep();
    EXPECT_EQ(StateAfterTenSteps(), expected);
  }
  void MakeSecondStep() { StepUnits({1, 2, 3}, -2.0f); }
};

TEST_F(CutModelTest, ACommitThatWasNotDecidedIsForgotten) {
  Hook hook;
  world_->cluster().BeforeVote([&] { return hook.Call(), absl::OkStatus(); });
  ExpectGoesOn(hook, Is::kFirst);
}

TEST_F(CutModelTest, AStepThatWasDecidedAndNotBegunIsMade) { ExpectGoesOn(hooks_.before_step, Is::kSecond); }

TEST_F(CutModelTest, AStepOfPushesThatWereKeptAsTheyAreIsMade) {
  spec_.set_pushes_per_step(1);
  for (v1::UnitSpec& unit : *spec_.mutable_units()) {
    unit.mutable_parameters(0)->set_gradient_type(v1::GRADIENT_TYPE_BF16);
  }
  ExpectGoesOn(hooks_.before_step, Is::kSecond);
}

TEST_F(CutModelTest, AStepThatWasMadeAndNotAnsweredIsAnswered) { ExpectGoesOn(hooks_.after_step, Is::kSecond); }

TEST_F(CutModelTest, AStepWhoseAmaxesAreInTheBookIsAnswered) { ExpectGoesOn(hooks_.before_encode, Is::kSecond); }

TEST_F(CutModelTest, AStepWhosePlanesAreMadeIsAnswered) { ExpectGoesOn(hooks_.after_encode, Is::kSecond); }

TEST_F(CutModelTest, ACommitThatWasToBeWrittenDownIsAnswered) { ExpectGoesOn(before_answer_, Is::kSecond); }

TEST_F(CutModelTest, ACommitThatIsWrittenDownAndThatNobodyWasToldOfIsAnswered) {
  HearingSaver::Heard heard;
  HearingSavers savers(&heard);
  Hook on_committed;
  savers.on_committed = [&] { on_committed.Call(); };
  savers_ = &savers;
  Start(1);
  ExpectGoesOn(on_committed, Is::kSecond);
  CloseWorld();
}

TEST_F(CutModelTest, AServerThatDiesWhileItFinishesAStepIsFollowedByOneThatDoes) {
  Create();
  Attach();
  StepAll(0.5f);
  FakeKeptStore left;
  hooks_.before_step.Set([&] { CopyKept(*kept_, left); });
  StepAll(-2.0f);
  trainers_.clear();
  const std::string expected = StateOf(*model_);
  for (Hook* const hook : {&hooks_.before_step, &hooks_.after_step, &hooks_.after_step}) {
    CloseWorld();
    kept_ = std::make_unique<FakeKeptStore>();
    CopyKept(left, *kept_);
    for (Hook* const one : {&hooks_.before_step, &hooks_.after_step}) one->Set(nullptr);
    hook->Set([&] { CopyKept(*kept_, left); });
    TakeOver(1);
    EXPECT_EQ(StateOf(*model_), expected);
  }
}

TEST_F(CutModelTest, TheSaveThatACommitAskedForIsMadeByTheServerThatAnswersIt) {
  HearingSaver::Heard heard;
  const HearingSavers savers(&heard);
  savers_ = &savers;
  Start(1);
  for (const bool asked : {true, false}) {
    Create();
    Attach();
    FakeKeptStore left;
    hooks_.after_step.Set([&] { CopyKept(*kept_, left); });
    Push(0, [](int) { return 0.5f; });
    Commit([&](v1::Commit& commit) { commit.set_save(asked); });
    hooks_.after_step.Set(nullptr);
    trainers_.clear();
    CloseWorld();
    kept_ = std::make_unique<FakeKeptStore>();
    CopyKept(left, *kept_);
    heard.clear();
    TakeOver(1);
    EXPECT_EQ(heard, HearingSaver::Heard({{1, asked}}));
    heard.clear();
    TakeOver(1);
    EXPECT_THAT(heard, IsEmpty()) << "it was answered before";
    ASSERT_OK(world_->store().Delete("m", ""));
  }
  CloseWorld();
}

TEST_F(CutModelTest, AModelThatIsBeingFilledIsNotThereForTheNextServer) {
  FakeKeptStore left;
  const auto fill = [&](const std::shared_ptr<Model>&, ModelStore::Show) {
    return CopyKept(*kept_, left), absl::OkStatus();
  };
  ASSERT_OK(world_->store().CreateOrJoin(Parse(Spec()), fill).status());
  CloseWorld();
  kept_ = std::make_unique<FakeKeptStore>();
  CopyKept(left, *kept_);
  Start(1);
  ASSERT_OK(world_->store().TakeOver());
  EXPECT_THAT(world_->store().Find("m"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(KeptModels::Sort(*kept_->TakeAll()).models, IsEmpty());
}

TEST_F(CutModelTest, ASkippedCommitStaysSkipped) {
  Create();
  Attach();
  Push(0, [](int) { return std::numeric_limits<float>::infinity(); });
  EXPECT_TRUE(Commit().skipped);
  trainers_.clear();
  const std::string before = StateOf(*model_);
  TakeOver(1);
  EXPECT_EQ(StateOf(*model_), before);
}

TEST_F(KeptModelTest, ADeletedModelLeavesNothing) {
  Create();
  EXPECT_THAT(*kept_->TakeAll(), testing::Not(IsEmpty()));
  ASSERT_OK(world_->store().Delete("m", ""));
  EXPECT_THAT(KeptModels::Sort(*kept_->TakeAll()).models, IsEmpty());
  Create();
  TakeOver();
}

TEST_F(KeptModelTest, AModelThatCouldNotBeFilledLeavesNothing) {
  const auto fail = [](const std::shared_ptr<Model>&, ModelStore::Show) { return absl::InternalError("no"); };
  EXPECT_THAT(world_->store().CreateOrJoin(Parse(Spec()), fail), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(KeptModels::Sort(*kept_->TakeAll()).models, IsEmpty());
}

TEST_F(KeptModelTest, AnotherWorldLeavesTheModelToOneThatCanGoOn) {
  Create();
  const std::string before = StateOf(*model_);
  Start(3);
  EXPECT_THAT(world_->store().TakeOver(),
              StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("model m"), HasSubstr("[2]"))));
  TakeOver();
  EXPECT_EQ(StateOf(*model_), before);
}

TEST_F(KeptModelTest, AModelWithoutItsMemoryIsLostUntilItIsDeleted) {
  Create();
  CloseWorld();
  // Its journal alone is left.
  auto taken = kept_->TakeAll();
  ASSERT_OK(taken.status());
  kept_ = std::make_unique<FakeKeptStore>();
  for (const auto& [name, fd] : *taken) {
    if (!absl::StrContains(name, kJournalPiece)) continue;
    ASSERT_OK(kept_->Keep(name, fd.get()));
  }
  Start(2);
  ASSERT_OK(world_->store().TakeOver());
  const auto is_lost = StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("model m"), HasSubstr("rank-0/master")));
  EXPECT_THAT(world_->store().Find("m"), is_lost);
  EXPECT_THAT(world_->store().CreateOrJoin(Parse(Spec())), is_lost);
  Start(2);
  ASSERT_OK(world_->store().TakeOver());
  EXPECT_THAT(world_->store().Find("m"), is_lost) << "the next server says so too";
  ASSERT_OK(world_->store().Delete("m", "id"));
  ASSERT_OK(world_->store().Delete("m", "id"));
  EXPECT_THAT(KeptModels::Sort(*kept_->TakeAll()).models, IsEmpty());
  Create();
}

TEST_F(KeptModelTest, AnImportThatWasCutOffIsLost) {
  Create();
  FakeKeptStore left;
  ASSERT_OK(model_->changes().BeginImport());
  ASSERT_OK(model_->changes().Import({}, [&] { return CopyKept(*kept_, left), absl::OkStatus(); }).status());
  CloseWorld();
  kept_ = std::make_unique<FakeKeptStore>();
  CopyKept(left, *kept_);
  Start(2);
  ASSERT_OK(world_->store().TakeOver());
  EXPECT_THAT(world_->store().Find("m"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("an import was interrupted")));
}

TEST_F(KeptModelTest, AStateThatWasChangedGoesOn) {
  Create();
  ASSERT_OK(model_->changes().BeginImport());
  ASSERT_OK(model_->changes().Import({.commit_number = 7, .version = 5}, [] { return absl::OkStatus(); }).status());
  model_->changes().ReleaseImportLock();
  const std::string before = StateOf(*model_);
  TakeOver();
  EXPECT_EQ(StateOf(*model_), before);
  EXPECT_EQ(commit_number(), 7);
  StateAfterMoreSteps();
}

TEST_F(KeptModelTest, ARestoreThatWasCutOffIsToBeMadeAgain) {
  Create();
  CutOffARestore();
  EXPECT_THAT(model_->state().unfinished(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("a restore")));
  // The server ends again before it was made.
  TakeOverCutOff();
  ASSERT_OK(model_->changes().Restore(FromStep7(), [] { return absl::OkStatus(); }).status());
  world_->store().FinishChange(model_, absl::OkStatus());
  EXPECT_OK(model_->state().unfinished());
  StateAfterMoreSteps();
}

TEST_F(KeptModelTest, NobodyGetsAtAModelThatIsToBeChangedAgain) {
  Create();
  CutOffARestore();
  const auto is_held_off = StatusIs(absl::StatusCode::kUnavailable, HasSubstr("a restore is being applied"));
  Trainer trainer;
  trainer.session = 1;
  EXPECT_THAT(model_->trainers().Attach(trainer), is_held_off);
  EXPECT_THAT(model_->state().Look("export"), is_held_off);
  EXPECT_THAT(model_->state().Hold(), is_held_off);
  EXPECT_THAT(model_->changes().BeginImport(), is_held_off);
  EXPECT_THAT(world_->store().Delete("m", ""), is_held_off);
  EXPECT_THAT(Summarize(*model_).unusable, HasSubstr("a restore was interrupted"));
  EXPECT_TRUE(model_->durability().journal());
  world_->store().FinishChange(model_, absl::NotFoundError("no such folder"));
  EXPECT_THAT(world_->store().Find("m"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no such folder")));
}

// A change that was cut off, and that cannot be made again, while the model is deleted.
class UnmadeChangeTest : public KeptModelTest {
 protected:
  void SetUp() override {
    savers_ = &hearing_;
    Start(2);
    Create();
    CutOffARestore();
    EXPECT_THAT(model_->changes().Restore(FromStep7(), [] { return kUnmade; }), StatusIs(absl::StatusCode::kDataLoss));
  }
  // The next saver that is stopped, and no other one.
  void WhenASaverIsStopped(const std::function<void()>& act) {
    hearing_.before_stop = [this, act] {
      const std::function<void()> once = act;  // what replaces this function ends its captures
      hearing_.before_stop = [] {};
      once();
    };
  }
  void ExpectNewModelIsKept() {
    ASSERT_OK_AND_ASSIGN(const auto found, world_->store().Find("m"));
    EXPECT_NE(found, model_);
    EXPECT_THAT(world_->store().lost().List(), IsEmpty());
    ASSERT_OK_AND_ASSIGN(const KeptStore::Descriptors kept, kept_->TakeAll());
    EXPECT_FALSE(kept.empty());
  }

  static inline const absl::Status kUnmade = absl::DataLossError("a damaged file");
  HearingSaver::Heard heard_;
  HearingSavers hearing_{&heard_};
};

TEST_F(UnmadeChangeTest, DoesNotLoseANewModelOfThatName) {
  WhenASaverIsStopped([this] {
    ASSERT_OK(world_->store().Delete("m", ""));
    world_->Create(Spec());
  });
  world_->store().FinishChange(model_, kUnmade);
  ExpectNewModelIsKept();
}

TEST_F(UnmadeChangeTest, LosesAModelOnlyUntilItsDeletionIsThrough) {
  WhenASaverIsStopped([this] {
    world_->store().FinishChange(model_, kUnmade);
    EXPECT_THAT(world_->store().Find("m"), StatusIs(absl::StatusCode::kDataLoss));
  });
  ASSERT_OK(world_->store().Delete("m", ""));
  EXPECT_THAT(world_->store().Find("m"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(world_->store().lost().List(), IsEmpty());
  EXPECT_THAT(KeptModels::Sort(*kept_->TakeAll()).models, IsEmpty());
}

TEST_F(UnmadeChangeTest, LeavesTheMemoryToTheNextModelOfThatName) {
  WhenASaverIsStopped([this] {
    world_->store().FinishChange(model_, kUnmade);
    ASSERT_OK(world_->store().Delete("m", ""));
    world_->Create(Spec());
  });
  ASSERT_OK(world_->store().Delete("m", "")) << "of the model before, whose memory is dropped late";
  ExpectNewModelIsKept();
}

}  // namespace
}  // namespace paramshard::server
