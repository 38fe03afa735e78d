// Changes that one server begins and the next one makes.
#include "server/edge/interrupted_changes.h"

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/model/model_spec_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/admin.pb.h"
#include "server/base/thread.h"
#include "server/checkpoints/restore_task.h"
#include "server/edge/file_import.h"
#include "server/models/inspection.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/common/safetensors_files.h"
#include "tests/server/base/manual_clock.h"
#include "tests/server/device/faulty_device.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/server/models/left_memory.h"
#include "tests/server/models/test_world.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kRows = 96;
constexpr int64_t kColumns = 257;  // as TallSpec has it

ModelSpec SpecWith(MomentType moments) {
  ModelSpec spec = checkpoint::TallSpec(kRows);
  for (const MomentTraits& moment : kMomentKinds) MomentTypeOf(spec.units[0].parameters[0], moment.kind) = moments;
  return checkpoint::Checked(spec);
}

constexpr absl::Duration kLong = absl::Seconds(30);  // that no test should wait for
const InterruptedChanges::Options kPatiently = {.first_pause = absl::Milliseconds(1),
                                                .longest_pause = absl::Milliseconds(4)};

void AwaitRefusals(const ThreadShortage& shortage, int count) {
  for (const SteadyTime deadline = SteadyDeadline(kLong); shortage.refusals() < count && SteadyNow() < deadline;) {
    std::this_thread::yield();
  }
  ASSERT_GE(shortage.refusals(), count);
}

// Holds back who writes into a device.
class Gate {
 public:
  void Pass() {
    absl::call_once(once_, [this] { reached_.Notify(); });
    open_.WaitForNotification();
  }
  void AwaitReached() { reached_.WaitForNotification(); }
  void Open() { open_.Notify(); }

 private:
  absl::once_flag once_;
  absl::Notification reached_;
  absl::Notification open_;
};

class InterruptedChangesTest : public testing::Test {
 protected:
  void SetUp() override { Start(); }
  void TearDown() override { model_ = nullptr; }

  // A server in the place of the one before.
  void Start() {
    model_ = nullptr;
    changes_ = nullptr;
    world_ = nullptr;
    world_ = std::make_unique<TestWorld>(TestWorld::Options{
        .ranks = 2,
        .moves = {.moves = true},
        .make_device = [this](int rank) { return std::make_unique<FaultyDevice>(MakeCpuDevice(rank), &faults_); },
        .kept = kept_.get()});
  }
  // One that has what the one before has left.
  void StartAfter(FakeKeptStore& left) {
    const std::unique_ptr<FakeKeptStore> before = std::exchange(kept_, std::make_unique<FakeKeptStore>());
    CopyKept(left, *kept_);
    Start();
    TakeOver();
  }
  void TakeOver() {
    ASSERT_OK_AND_ASSIGN(std::vector<InterruptedChange> cut_off, world_->store().TakeOver());
    ASSERT_THAT(cut_off, SizeIs(1));
    model_ = cut_off[0].model;
    cut_off_ = std::move(cut_off);
  }
  void MakeAgain(const InterruptedChanges::Options& options = kPatiently) {
    ASSERT_OK_AND_ASSIGN(changes_, InterruptedChanges::Start(&world_->store(), std::move(cut_off_), options));
  }
  void AwaitChanges() { changes_->Await(); }

  // Fills `left` with the memory of a server that dies before the first row is written; this restore runs to its end.
  void CutRestore(const std::string& folder, FakeKeptStore& left) {
    model_ = world_->Create(ModelSpecToProto(SpecWith(MomentType::kFP32)));
    ASSERT_OK_AND_ASSIGN(const auto restore, RestoreTask::Prepare(model_, folder, {.convert_moments = true}));
    absl::once_flag copied;
    faults_.before_write = [&] { absl::call_once(copied, [&] { CopyKept(*kept_, left); }); };
    ASSERT_OK(restore->Run().status());
    faults_.before_write = [] {};
    expected_ = StateHash(*model_);
  }
  std::string WriteCheckpoint() const {
    const checkpoint::SavedModel saved(SpecWith(MomentType::kBF16), 9);
    return saved.Write(folder_.path(), {.world = {3, 3}, .history = absl::uint128(1) << 100});
  }
  // The parameter at the third place, whose planes are all that there is of it.
  absl::Status WriteFrozen(const std::vector<float>& values) const {
    for (const auto& shard : model_->committed().shards) {
      const ShardExtent* const extent = shard->extents().Find(0, 2);
      if (extent == nullptr) continue;
      const auto rows = absl::MakeConstSpan(values).subspan(extent->rows.begin * kColumns, extent->elements);
      RETURN_IF_ERROR(shard->Write(*extent, StateTensor::kMaster, rows));
    }
    return absl::OkStatus();
  }
  // Its first row.
  std::vector<float> FrozenRow() const {
    const Shard& shard = *model_->committed().shards.front();
    const ShardExtent& extent = *shard.extents().Find(0, 2);
    absl::ReaderMutexLock lock(&shard.mutex());
    std::vector<float> values = *shard.arrays().Read(extent, StateTensor::kMaster);
    values.resize(kColumns);
    return values;
  }

  const test::TemporaryDirectory folder_;
  DeviceFaults faults_;
  std::unique_ptr<FakeKeptStore> kept_ = std::make_unique<FakeKeptStore>();
  std::unique_ptr<TestWorld> world_;
  std::vector<InterruptedChange> cut_off_;
  std::unique_ptr<InterruptedChanges> changes_;
  std::shared_ptr<Model> model_;
  std::string expected_;  // of the state
};

TEST_F(InterruptedChangesTest, ARestoreIsMadeAgainAsItWasAskedFor) {
  FakeKeptStore left;
  CutRestore(WriteCheckpoint(), left);
  StartAfter(left);
  MakeAgain();
  AwaitChanges();
  EXPECT_OK(model_->state().unfinished());
  EXPECT_EQ(StateHash(*model_), expected_);
  EXPECT_EQ(model_->state().snapshot().numbers.commit_number, 12);
  EXPECT_THAT(Summarize(*model_).unusable, testing::IsEmpty());
}

TEST_F(InterruptedChangesTest, WhileARestoreIsMadeAgainItsModelSaysSo) {
  FakeKeptStore left;
  CutRestore(WriteCheckpoint(), left);
  StartAfter(left);
  Gate gate;
  faults_.before_write = [&] { gate.Pass(); };
  MakeAgain();
  gate.AwaitReached();
  ASSERT_OK_AND_ASSIGN(const auto found, world_->store().Find(model_->spec().name));
  const ModelSummary summary = Summarize(*found);
  EXPECT_TRUE(summary.restore.has_value());
  EXPECT_THAT(summary.unusable, testing::IsEmpty()) << "the progress says more";
  Trainer trainer;
  trainer.session = 1;
  EXPECT_THAT(found->trainers().Attach(trainer),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("a restore (0 %) is being applied")));
  EXPECT_THAT(found->changes().BeginImport(), StatusIs(absl::StatusCode::kUnavailable));
  gate.Open();
  AwaitChanges();
  EXPECT_EQ(StateHash(*found), expected_);
}

TEST_F(InterruptedChangesTest, ADrainLeavesARestoreToTheNextServer) {
  FakeKeptStore left;
  CutRestore(WriteCheckpoint(), left);
  StartAfter(left);
  Gate gate;
  faults_.before_write = [&] { gate.Pass(); };
  MakeAgain();
  gate.AwaitReached();
  world_->store().Drain(SteadyTime::min(), absl::UnavailableError("the daemon is started again"));
  gate.Open();
  AwaitChanges();
  EXPECT_THAT(model_->state().unfinished(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_OK(model_->state().usable());
  faults_.before_write = [] {};
  Start();
  TakeOver();
  MakeAgain();
  AwaitChanges();
  EXPECT_EQ(StateHash(*model_), expected_);
}

TEST_F(InterruptedChangesTest, ADrainLeavesARestoreThatWasNotBegunToTheNextServer) {
  FakeKeptStore left;
  CutRestore(WriteCheckpoint(), left);
  StartAfter(left);
  world_->store().Drain(SteadyTime::min(), absl::UnavailableError("the daemon is started again"));
  MakeAgain();
  AwaitChanges();
  EXPECT_THAT(model_->state().unfinished(), StatusIs(absl::StatusCode::kUnavailable));
  Start();
  TakeOver();
}

TEST_F(InterruptedChangesTest, ARestoreWhoseCheckpointIsGoneLosesItsModelUntilItIsThereAgain) {
  FakeKeptStore left;
  const std::string folder = WriteCheckpoint();
  CutRestore(folder, left);
  std::filesystem::rename(folder, folder + ".away");
  StartAfter(left);
  const std::string name = model_->spec().name;
  MakeAgain();
  AwaitChanges();
  EXPECT_THAT(world_->store().Find(name), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(folder)));
  std::filesystem::rename(folder + ".away", folder);
  Start();
  TakeOver();
  MakeAgain();
  AwaitChanges();
  ASSERT_OK_AND_ASSIGN(const auto found, world_->store().Find(name));
  EXPECT_EQ(StateHash(*found), expected_);
}

TEST_F(InterruptedChangesTest, ARestoreThatFindsNoThreadIsTriedAgain) {
  FakeKeptStore left;
  CutRestore(WriteCheckpoint(), left);
  StartAfter(left);
  {
    // One for the changes themselves.
    const ThreadShortage shortage(1);
    MakeAgain();
    AwaitRefusals(shortage, 3);
    EXPECT_THAT(model_->state().unfinished(), StatusIs(absl::StatusCode::kUnavailable)) << "nothing is lost yet";
  }
  AwaitChanges();
  EXPECT_OK(model_->state().unfinished());
  EXPECT_EQ(StateHash(*model_), expected_);
}

TEST_F(InterruptedChangesTest, ARestoreThatBreaksOffInTheMiddleForNowIsTriedAgain) {
  FakeKeptStore left;
  CutRestore(WriteCheckpoint(), left);
  StartAfter(left);
  faults_.write_error = absl::StatusCode::kUnavailable;
  faults_.failing_write = faults_.writes + 2;
  MakeAgain();
  AwaitChanges();
  EXPECT_GT(faults_.writes, faults_.failing_write);
  EXPECT_OK(model_->state().usable());
  EXPECT_OK(model_->state().unfinished());
  EXPECT_EQ(StateHash(*model_), expected_);
}

TEST_F(InterruptedChangesTest, ARestoreThatFailsForGoodIsNotTriedAgain) {
  FakeKeptStore left;
  CutRestore(WriteCheckpoint(), left);
  StartAfter(left);
  faults_.failing_write = faults_.writes + 2;
  const std::string name = model_->spec().name;
  MakeAgain({.first_pause = absl::Hours(1)});
  AwaitChanges();
  EXPECT_THAT(world_->store().Find(name), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the test lets it fail")));
}

TEST_F(InterruptedChangesTest, ARestoreThatFailsForTooLongLosesItsModelAndTheNextServerTriesAgain) {
  FakeKeptStore left;
  CutRestore(WriteCheckpoint(), left);
  StartAfter(left);
  const std::string name = model_->spec().name;
  ManualClock clock;
  {
    const ThreadShortage shortage(1);
    MakeAgain({.first_pause = absl::Milliseconds(1), .longest_pause = absl::Milliseconds(4), .clock = &clock});
    while (world_->store().Find(name).ok()) clock.Advance(absl::Milliseconds(1));
    EXPECT_GT(shortage.refusals(), 1);
    AwaitChanges();
  }
  EXPECT_THAT(world_->store().Find(name), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a test's shortage")));
  Start();
  TakeOver();
  MakeAgain();
  AwaitChanges();
  ASSERT_OK_AND_ASSIGN(const auto found, world_->store().Find(name));
  EXPECT_EQ(StateHash(*found), expected_);
}

TEST_F(InterruptedChangesTest, TheEndOfTheDaemonEndsAPauseAndLeavesTheRestoreToTheNextServer) {
  FakeKeptStore left;
  CutRestore(WriteCheckpoint(), left);
  StartAfter(left);
  const ThreadShortage shortage(1);
  MakeAgain({.first_pause = absl::Hours(1), .longest_pause = absl::Hours(1), .timeout = absl::Hours(2)});
  AwaitRefusals(shortage, 1);
  changes_.reset();
  EXPECT_THAT(model_->state().unfinished(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_OK(model_->state().usable());
}

// The file has one of three parameters.
TEST_F(InterruptedChangesTest, AnImportFromFilesIsMadeAgainOverWhatItLeaves) {
  const std::string path = folder_.path() + "/in.safetensors";
  std::vector<float> values(kRows * kColumns);
  // Exact in bfloat16.
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 200 + 1);
  safetensors::WriteFile(path, {safetensors::FloatTensor("w", {kRows, kColumns}, values)});
  ModelSpec spec = SpecWith(MomentType::kFP32);
  spec.units[0].parameters.push_back(spec.units[0].parameters[0]);
  spec.units[0].parameters[1].name = "other";
  spec.units[0].parameters.push_back(
      {.name = "frozen", .shape = {kRows, kColumns}, .encoding = {.format = Format::kBF16}, .trainable = false});
  model_ = world_->Create(ModelSpecToProto(checkpoint::Checked(spec)));
  ASSERT_OK(model_->changes().Import({.commit_number = 7, .version = 5}, [&] { return WriteFrozen(values); }));

  v1::ImportFileRequest request;
  request.set_model(spec.name);
  request.set_path(path);
  request.set_partial(true);
  request.set_history_id(HistoryId{.value = 77}.ToString());
  FakeKeptStore left;
  absl::once_flag once;
  faults_.before_write = [&] { absl::call_once(once, [&] { CopyKept(*kept_, left); }); };
  ASSERT_OK(ImportFile(model_, request, [] { return false; }));
  faults_.before_write = [] {};
  expected_ = StateHash(*model_);

  FakeKeptStore again;
  CopyKept(left, again);
  StartAfter(left);
  EXPECT_THAT(Summarize(*model_).unusable, HasSubstr("an import was interrupted"));
  MakeAgain();
  AwaitChanges();
  EXPECT_OK(model_->state().unfinished());
  EXPECT_EQ(StateHash(*model_), expected_);
  EXPECT_EQ(FrozenRow(), std::vector<float>(values.begin(), values.begin() + kColumns)) << "their planes were kept";
  const StateNumbers numbers = model_->state().snapshot().numbers;
  EXPECT_EQ(numbers.history, HistoryId{.value = 77});
  EXPECT_EQ(numbers.commit_number, 7);
  EXPECT_EQ(numbers.version, 5);

  // Rows of two files in one tensor would be nobody's state.
  values[0] = 77.0f;
  safetensors::WriteFile(path, {safetensors::FloatTensor("w", {kRows, kColumns}, values)});
  StartAfter(again);
  MakeAgain();
  AwaitChanges();
  EXPECT_THAT(world_->store().Find(spec.name).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has changed since the import began")));
}

}  // namespace
}  // namespace paramshard::server
