// Daemons whose models were imported into differently do not train together.
#include "server/terms/history.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/models/daemons.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

class HistoriesTest : public testing::Test {
 protected:
  HistoriesTest() { daemons_.Create(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {64, 64})})})); }

  // Masters and what is said of them; numbers stay.
  void Import(int node, float value) {
    Model& model = daemons_.model(node);
    ASSERT_OK(model.changes().Import({.content = {.digest = static_cast<uint64_t>(value)}}, [&] {
      absl::Status status;
      for (const auto& shard : model.committed().shards) {
        const ShardExtent& extent = *shard->extents().Find(0, 0);
        status.Update(shard->Write(extent, StateTensor::kMaster, std::vector<float>(extent.elements, value)));
      }
      return status;
    }));
  }

  Daemons daemons_{{2, 2}};
};

TEST_F(HistoriesTest, ImportsThatDifferKeepEpochsFromStarting) {
  Import(0, 5);
  Import(1, 6);
  std::vector<std::unique_ptr<FakeTrainer>> trainers;
  for (int rank = 0; rank < 4; ++rank) {
    trainers.push_back(std::make_unique<FakeTrainer>(&daemons_.model(rank / 2), rank));
    ASSERT_OK(trainers.back()->Attach());
  }
  for (const auto& trainer : trainers) {
    const EpochEndInfo* ended = trainer->AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_EQ(ended->why.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(ended->why.message(), HasSubstr("want one history on all nodes"));
    EXPECT_THAT(ended->why.message(), HasSubstr("import the same into every daemon"));
  }
}

// The other one has nothing but its initial values.
TEST_F(HistoriesTest, AnImportIntoOneDaemonAloneIsWhatAllBeginWith) {
  Import(1, 5);
  const HistoryId imported = daemons_.model(1).state().history().id;
  daemons_.Attach();
  for (int node = 0; node < 2; ++node) EXPECT_EQ(daemons_.model(node).state().history().id, imported);
  for (const auto& shard : daemons_.model(0).committed().shards) {
    const ShardExtent& extent = *shard->extents().Find(0, 0);
    absl::ReaderMutexLock lock(&shard->mutex());
    EXPECT_THAT(shard->arrays().Read(extent, StateTensor::kMaster), IsOkAndHolds(testing::Each(5.0f)));
  }
}

// Each daemon has drawn an id of its own; they are one from the first epoch on.
TEST_F(HistoriesTest, ModelsThatWereCreatedApartHaveOneHistoryWhenTheyTrain) {
  const HistoryId of_zero = daemons_.model(0).state().history().id;
  EXPECT_NE(daemons_.model(1).state().history().id, of_zero);
  daemons_.Attach();
  EXPECT_EQ(daemons_.model(0).state().history().id, of_zero);
  EXPECT_EQ(daemons_.model(1).state().history().id, of_zero);
  daemons_.Kill(3);
  Import(0, 5);
  Import(1, 5);
  EXPECT_NE(daemons_.model(0).state().history().id, of_zero);
  daemons_.Attach();
  EXPECT_NE(daemons_.model(0).state().history().id, of_zero) << "an import begins another one";
  EXPECT_EQ(daemons_.model(0).state().history().id, daemons_.model(1).state().history().id);
}

// A partial import leaves equal states equal, and different ones different.
TEST_F(HistoriesTest, APartialImportAfterCommitsStaysEqual) {
  daemons_.Attach();
  daemons_.Push(0, [](int) { return std::vector<float>(64 * 64, 1.0f); });
  daemons_.Commit();
  daemons_.Kill(0);
  Import(0, 5);
  Import(1, 5);
  daemons_.Attach();
  EXPECT_EQ(daemons_.model(0).state().history().id, daemons_.model(1).state().history().id);
}

TEST_F(HistoriesTest, AStartThatAnImportOvertookIsRefused) {
  Model& model = daemons_.model(1);
  const History agreed = model.state().history();
  Import(1, 5);
  std::vector<std::unique_ptr<FakeTrainer>> trainers;
  for (int rank = 2; rank < 4; ++rank) {
    trainers.push_back(std::make_unique<FakeTrainer>(&model, rank));
    ASSERT_OK(trainers.back()->Attach());
  }
  model.trainers().OnEpochStart(
      {.epoch = 1, .lineage = agreed.lineage.ToString(), .history_id = agreed.id.ToString(), .active = {0}});
  EXPECT_FALSE(model.trainers().activity().running);
  EXPECT_NE(model.state().history().id, agreed.id);
}

TEST_F(HistoriesTest, CommitsKeepHistoriesEqual) {
  Import(0, 5);
  Import(1, 5);
  daemons_.Attach();
  daemons_.Push(0, [](int rank) { return std::vector<float>(64 * 64, 1.0f + static_cast<float>(rank)); });
  EXPECT_EQ(daemons_.Commit().version, 1);
  EXPECT_EQ(daemons_.model(0).state().snapshot().numbers.history, daemons_.model(1).state().snapshot().numbers.history);
  daemons_.Kill(0);
  daemons_.Attach();
}

}  // namespace
}  // namespace paramshard::server
