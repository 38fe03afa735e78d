// Every system call of a save fails, every one is the last before the process is killed or the power is lost: the
// latest checkpoint is the old or the new one, and whole.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/step_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/publisher.h"
#include "tests/server/base/simulated_disk.h"
#include "tests/server/checkpoints/saved_shards.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kOldStep = 12;
constexpr int64_t kNewStep = 13;

class SaveFaultsTest : public testing::Test {
 protected:
  SaveFaultsTest() : shards_(checkpoint::TinySpec(), /*seed=*/1) {}

  std::string FolderIn(const test::TemporaryDirectory& root) const {
    return ModelFolder(root.path(), shards_.spec().name);
  }

  // A root with the old checkpoint.
  test::TemporaryDirectory MakeRoot() {
    test::TemporaryDirectory root;
    auto publisher = Publisher::Open(&real_, root.path(), shards_.spec());
    EXPECT_OK(publisher);
    EXPECT_EQ(shards_.Save(&real_, **publisher, FolderIn(root), kOldStep).state, SaveState::kPublished);
    return root;
  }

  // Opens, saves, and deletes what is not to be kept, as a daemon that saves once.
  Publisher::Result Run(DiskCalls* calls, const std::string& root, int keep) {
    const auto publisher = Publisher::Open(calls, root, shards_.spec());
    if (!publisher.ok()) return {.status = publisher.status()};
    const Publisher::Result result = shards_.Save(calls, **publisher, ModelFolder(root, shards_.spec().name), kNewStep);
    if (result.state == SaveState::kPublished && keep > 0) (*publisher)->Retain({.newest = keep}, NotRead);
    return result;
  }

  // Checks the folder at the next start, and the save after it.
  void ExpectGoodStart(const test::TemporaryDirectory& root, int64_t latest) {
    const std::string folder = FolderIn(root);
    ASSERT_OK_AND_ASSIGN(const auto steps, checkpoint::ListSteps(folder));
    for (const checkpoint::StepEntry& step : steps) ExpectWhole(step.path);
    ASSERT_OK_AND_ASSIGN(const auto publisher, Publisher::Open(&real_, root.path(), shards_.spec()));
    EXPECT_OK(publisher->leftovers());
    std::vector<std::string> names = {"lock"};
    for (const checkpoint::StepEntry& step : steps) names.push_back(std::filesystem::path(step.path).filename());
    EXPECT_THAT(NamesIn(folder), testing::UnorderedElementsAreArray(names));
    EXPECT_EQ(LatestStepIn(folder), latest);
    EXPECT_EQ(shards_.Save(&real_, *publisher, folder, kNewStep + 1).state, SaveState::kPublished);
    EXPECT_EQ(LatestStepIn(folder), kNewStep + 1);
  }

  // Runs with the fault at every call in turn.
  void FailEveryCall(Fault fault, int keep) {
    for (int64_t at = 1;; ++at) {
      SCOPED_TRACE(absl::StrCat("call ", at));
      const test::TemporaryDirectory root = MakeRoot();
      FaultyCalls calls(fault, at);
      const Publisher::Result result = Run(&calls, root.path(), keep);
      const int64_t latest = LatestStepIn(FolderIn(root));
      switch (result.state) {
        case SaveState::kPublished:
          EXPECT_EQ(latest, kNewStep);
          break;
        case SaveState::kAbandoned:
          EXPECT_FALSE(result.status.ok());
          EXPECT_EQ(latest, kOldStep);
          break;
        case SaveState::kUnknown:
          EXPECT_FALSE(result.status.ok());
          EXPECT_THAT(latest, AnyOf(kOldStep, kNewStep));
          // Nothing is deleted.
          EXPECT_OK(checkpoint::FindStep(FolderIn(root), kOldStep));
          break;
        default:
          ADD_FAILURE() << "nobody has saved it before";
      }
      ExpectGoodStart(root, latest);
      if (HasFailure()) return;
      if (calls.count() < at) break;
    }
  }

  QuickCalls real_;
  SavedShards shards_;
};

TEST_F(SaveFaultsTest, AnInputOutputErrorAtAnyCallLeavesTheOldOrTheNewCheckpoint) {
  FailEveryCall(Fault::kIoError, /*keep=*/0);
}

TEST_F(SaveFaultsTest, AFullDiskAtAnyCallLeavesTheOldOrTheNewCheckpoint) {
  FailEveryCall(Fault::kDiskFull, /*keep=*/0);
}

TEST_F(SaveFaultsTest, AShortWriteAtAnyCallLeavesTheOldOrTheNewCheckpoint) {
  FailEveryCall(Fault::kShortWrite, /*keep=*/0);
}

TEST_F(SaveFaultsTest, ASignalAtAnyCallLeavesTheOldOrTheNewCheckpoint) {
  FailEveryCall(Fault::kInterrupted, /*keep=*/0);
}

TEST_F(SaveFaultsTest, ALostAnswerAtAnyCallLeavesTheOldOrTheNewCheckpoint) {
  FailEveryCall(Fault::kDoneButFailed, /*keep=*/0);
}

TEST_F(SaveFaultsTest, AKillAtAnyCallOfASaveAndADeletionLeavesTheOldOrTheNewCheckpoint) {
  FailEveryCall(Fault::kKill, /*keep=*/1);
}

TEST_F(SaveFaultsTest, AnInputOutputErrorAtAnyCallOfADeletionLeavesTheNewCheckpoint) {
  FailEveryCall(Fault::kIoError, /*keep=*/1);
}

TEST_F(SaveFaultsTest, NoFsyncFollowsOneThatHasFailed) {
  const test::TemporaryDirectory opened = MakeRoot();
  FaultyCalls opening;
  ASSERT_OK(Publisher::Open(&opening, opened.path(), shards_.spec()));
  int failed = 0;
  for (int64_t at = opening.count() + 1;; ++at) {
    const test::TemporaryDirectory root = MakeRoot();
    FaultyCalls calls(Fault::kIoError, at);
    const Publisher::Result result = Run(&calls, root.path(), /*keep=*/1);
    if (calls.count() < at) break;
    if (!calls.fsync_has_failed()) continue;
    ++failed;
    EXPECT_EQ(calls.repeated_fsyncs(), 0) << "call " << at << ": " << result.status;
  }
  // Four ranks, two parts and their folder twice, three files of node 0, its folder, the parent; that of the deletion.
  EXPECT_EQ(failed, 4 + 4 + 3 + 1 + 1 + 1);
}

// The operations of a save and of the deletion after it, to every point; each survivor of it is started from.
class PowerLossTest : public SaveFaultsTest {
 protected:
  // kNone: there was no checkpoint before.
  static constexpr int64_t kNone = -1;

  void ExpectOldOrNew(const DiskModel& disk, Survivors survivors, int64_t old_step, bool is_published) {
    SCOPED_TRACE(absl::StrCat("survivors ", static_cast<int>(survivors)));
    const test::TemporaryDirectory root;
    disk.Materialize(survivors, root.path());
    const auto found = checkpoint::LatestStep(FolderIn(root));
    const bool is_none = old_step == kNone && absl::IsNotFound(found.status());
    const int64_t latest = is_none ? kNone : LatestStepIn(FolderIn(root));
    EXPECT_THAT(latest, AnyOf(is_published ? kNewStep : old_step, kNewStep));
    if (!is_none) ExpectGoodStart(root, latest);
  }

  // Saves and deletes in `root`, where `old_step` is the latest, and starts from every survivor of every operation.
  void LosePowerAtEveryPoint(const test::TemporaryDirectory& root, int64_t old_step) {
    DiskModel disk(root.path());
    RecordingCalls calls;
    size_t published_at = 0;
    {
      ASSERT_OK_AND_ASSIGN(const auto publisher, Publisher::Open(&calls, root.path(), shards_.spec()));
      ASSERT_EQ(shards_.Save(&calls, *publisher, FolderIn(root), kNewStep).state, SaveState::kPublished);
      published_at = calls.operations().size();
      const Deletion deletion = publisher->Retain({.newest = 1}, NotRead);
      ASSERT_OK(deletion.status);
      ASSERT_EQ(deletion.deleted, old_step == kNone ? 0 : 1);
    }
    const std::vector<Operation>& operations = calls.operations();
    for (size_t done = 0; done <= operations.size(); ++done) {
      SCOPED_TRACE(absl::StrCat("operation ", done, " of ", operations.size()));
      const bool is_published = done >= published_at;
      for (const Survivors survivors :
           {Survivors::kEverything, Survivors::kOnlySynced, Survivors::kNamesWithoutBytes, Survivors::kInnerNames}) {
        ExpectOldOrNew(disk, survivors, old_step, is_published);
        if (HasFailure()) return;
      }
      if (done == operations.size()) break;
      if (operations[done].kind == Operation::Kind::kWrite) {
        // The write is done again whole below.
        for (const bool first_half : {true, false}) {
          disk.Apply(Torn(operations[done], first_half));
          ExpectOldOrNew(disk, Survivors::kEverything, old_step, is_published);
          if (HasFailure()) return;
        }
      }
      disk.Apply(operations[done]);
    }
  }

  // The operation with its first or its last half lost, but its length.
  static Operation Torn(Operation operation, bool first_half) {
    const size_t half = operation.bytes.size() / 2;
    if (first_half) {
      operation.bytes.replace(0, half, half, '\0');
    } else {
      operation.bytes.resize(half);
    }
    return operation;
  }
};

TEST_F(PowerLossTest, LeavesTheOldOrTheNewCheckpointAtAnyPoint) { LosePowerAtEveryPoint(MakeRoot(), kOldStep); }

TEST_F(PowerLossTest, LeavesNoneOrTheFirstCheckpointAtAnyPoint) {
  LosePowerAtEveryPoint(test::TemporaryDirectory(), kNone);
}

}  // namespace
}  // namespace paramshard::server
