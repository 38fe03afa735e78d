#include "server/checkpoints/retention.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "tests/server/base/simulated_disk.h"
#include "tests/server/checkpoints/saved_shards.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// In the order in which ListSteps gives them.
std::vector<checkpoint::StepEntry> Steps(const std::vector<int64_t>& steps) {
  std::vector<checkpoint::StepEntry> entries;
  for (const int64_t step : steps) {
    checkpoint::StepEntry& entry = entries.emplace_back();
    entry.name.step = step;
    checkpoint::Manifest manifest{.save_serial = static_cast<int64_t>(entries.size()), .step = step};
    entry.manifest = manifest;
  }
  return entries;
}

std::vector<int64_t> StepsOf(const std::vector<checkpoint::StepEntry>& entries) {
  std::vector<int64_t> steps;
  for (const checkpoint::StepEntry& entry : entries) steps.push_back(entry.name.step);
  return steps;
}

TEST(RetentionTest, TheNewestBySerialStay) {
  // After a restore of step 20 the branch with lower numbers is the living one.
  EXPECT_THAT(StepsOf(ExpiredSteps(Steps({10, 20, 30, 21, 22}), {.newest = 2})), ElementsAre(10, 20));
  EXPECT_THAT(StepsOf(ExpiredSteps(Steps({10, 20, 30, 21, 31}), {.newest = 2})), ElementsAre(10, 20, 30));
  EXPECT_THAT(ExpiredSteps(Steps({10, 20}), {.newest = 2}), IsEmpty());
  EXPECT_THAT(ExpiredSteps({}, {.newest = 2}), IsEmpty());
}

TEST(RetentionTest, TheFurthestStaysUntilAnotherOneHasComeAsFar) {
  EXPECT_THAT(StepsOf(ExpiredSteps(Steps({100, 200, 300, 1, 2, 3, 4}), {.newest = 2})), ElementsAre(100, 200, 1, 2));
}

TEST(RetentionTest, OfSeveralWithTheHighestStepTheNewestStays) {
  // Saved again after each restore.
  EXPECT_THAT(StepsOf(ExpiredSteps(Steps({22, 22, 22, 22, 22}), {.newest = 2})), ElementsAre(22, 22, 22));
  const std::vector<checkpoint::StepEntry> steps = Steps({22, 22, 22, 1, 2, 3});
  const std::vector<checkpoint::StepEntry> expired = ExpiredSteps(steps, {.newest = 1});
  EXPECT_THAT(StepsOf(expired), ElementsAre(22, 22, 1, 2));
  EXPECT_EQ(expired[1].manifest->save_serial, 2);
}

TEST(RetentionTest, MultiplesOfTheStepStayBesides) {
  EXPECT_THAT(StepsOf(ExpiredSteps(Steps({0, 10, 100, 110, 200, 210}), {.newest = 1, .every = 100})),
              ElementsAre(10, 110));
}

TEST(RetentionTest, DamagedOnesAreNeitherCountedNorDeleted) {
  std::vector<checkpoint::StepEntry> steps = Steps({5, 10, 20});
  steps[0].manifest = absl::DataLossError("damaged");
  EXPECT_THAT(StepsOf(ExpiredSteps(steps, {.newest = 1})), ElementsAre(10));
}

class DeletionTest : public testing::Test {
 protected:
  DeletionTest() : shards_(checkpoint::TinySpec(), /*seed=*/3), folder_(ModelFolder(root_.path(), "tiny")) {}

  void SaveSteps(int64_t first, int count) {
    ASSERT_OK_AND_ASSIGN(const auto publisher, Publisher::Open(&real_, root_.path(), shards_.spec()));
    for (int64_t step = first; step < first + count; ++step)
      ASSERT_OK(shards_.Save(&real_, *publisher, folder_, step).status);
  }

  const test::TemporaryDirectory root_;
  QuickCalls real_;
  SavedShards shards_;
  const std::string folder_;
};

TEST_F(DeletionTest, AtMostSoManyGoAtATimeTheOldestFirst) {
  SaveSteps(20, Publisher::kMaxDeletions + 3);
  ASSERT_OK_AND_ASSIGN(const auto publisher, Publisher::Open(&real_, root_.path(), shards_.spec()));
  EXPECT_EQ(publisher->Retain({.newest = 1}, NotRead).deleted, static_cast<int>(Publisher::kMaxDeletions));
  ASSERT_OK_AND_ASSIGN(const auto left, checkpoint::ListSteps(folder_));
  EXPECT_THAT(StepsOf(left), ElementsAre(36, 37, 38));
  EXPECT_EQ(publisher->Retain({.newest = 1}, NotRead).deleted, 2);
  EXPECT_EQ(publisher->Retain({.newest = 1}, NotRead).deleted, 0);
}

// Every folder with a checkpoint's name stays whole at every fault, and the next start removes the rest.
TEST_F(DeletionTest, AFaultAtAnyCallLeavesWholeCheckpoints) {
  int64_t step = 20;
  for (const Fault fault : {Fault::kKill, Fault::kIoError, Fault::kDoneButFailed}) {
    for (int64_t at = 1;; ++at) {
      SCOPED_TRACE(absl::StrCat("fault ", static_cast<int>(fault), " at call ", at));
      step += 3;
      SaveSteps(step, 3);
      ASSERT_OK_AND_ASSIGN(const auto steps, checkpoint::ListSteps(folder_));
      FaultyCalls calls(fault, at);
      const Deletion deletion = DeleteSteps(Disk(&calls), folder_, ExpiredSteps(steps, {.newest = 1}));
      const bool is_faulty = calls.count() >= at;
      EXPECT_EQ(deletion.status.ok(), !is_faulty);
      ASSERT_OK_AND_ASSIGN(const auto left, checkpoint::ListSteps(folder_));
      for (const checkpoint::StepEntry& entry : left) ExpectWhole(entry.path);
      EXPECT_EQ(LatestStepIn(folder_), step + 2);
      ASSERT_OK_AND_ASSIGN(const auto publisher, Publisher::Open(&real_, root_.path(), shards_.spec()));
      EXPECT_OK(publisher->leftovers());
      EXPECT_EQ(NamesIn(folder_).size(), left.size() + 1);
      EXPECT_OK(publisher->Retain({.newest = 1}, NotRead).status);
      ASSERT_FALSE(HasFailure());
      if (!is_faulty) break;
    }
  }
}

}  // namespace
}  // namespace paramshard::server
