// Daemons whose models were imported into differently do not train together.
#include "server/store/history.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/store/daemons.h"
#include "tests/server/store/test_spec.h"
#include "tests/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

class HistoriesTest : public testing::Test {
 protected:
  HistoriesTest() { daemons_.Create(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {64, 64})})})); }

  // Masters and what is said of them; numbers stay.
  void Import(int node, float value) {
    Model& model = daemons_.model(node);
    ASSERT_OK(model.Change({.content = {.digest = static_cast<uint64_t>(value)}}, [&] {
      absl::Status status;
      for (const auto& shard : model.shards()) {
        const ShardExtent& extent = *shard->Find(0, 0);
        status.Update(shard->Write(extent, StateTensor::kMaster, std::vector<float>(extent.elements, value)));
      }
      return status;
    }));
  }

  Daemons daemons_{{2, 2}};
};

TEST_F(HistoriesTest, AnImportIntoOneDaemonAloneKeepsEpochsFromStarting) {
  Import(0, 5);
  std::vector<std::unique_ptr<FakeTrainer>> trainers;
  for (int rank = 0; rank < 4; ++rank) {
    trainers.push_back(std::make_unique<FakeTrainer>(&daemons_.model(rank / 2), rank));
    ASSERT_OK(trainers.back()->Attach());
  }
  for (const auto& trainer : trainers) {
    const v1::EpochEnded* ended = trainer->AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_EQ(ended->why().code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
    EXPECT_THAT(ended->why().text(), HasSubstr("one history on all nodes expected"));
    EXPECT_THAT(ended->why().text(), HasSubstr("import the same into every daemon"));
  }
  trainers.clear();
  Import(1, 5);
  daemons_.Attach();
}

TEST_F(HistoriesTest, CommitsKeepHistoriesEqual) {
  Import(0, 5);
  Import(1, 5);
  daemons_.Attach();
  daemons_.Push(0, [](int rank) { return std::vector<float>(64 * 64, 1.0f + static_cast<float>(rank)); });
  EXPECT_EQ(daemons_.Commit().version, 1);
  EXPECT_EQ(daemons_.model(0).state().numbers.history, daemons_.model(1).state().numbers.history);
  daemons_.Kill(0);
  daemons_.Attach();
}

}  // namespace
}  // namespace paramshard::server
