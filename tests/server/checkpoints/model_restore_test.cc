// A restorer in a model's hands.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/model/model_spec_proto.h"
#include "gmock/gmock.h"
#include "server/checkpoints/model_restore.h"
#include "server/checkpoints/restore_peers.h"
#include "server/models/inspection.h"
#include "server/models/model.h"
#include "tests/server/checkpoints/restore_fixture.h"
#include "tests/server/models/test_world.h"
#include "tests/status_matchers.h"

namespace paramshard::server {
namespace {

using checkpoint::Reader;
using checkpoint::SavedModel;

class ModelRestoreTest : public RestoreTest {
 protected:
  absl::StatusOr<std::unique_ptr<Restorer>> PrepareModel(const Reader& reader) const {
    ASSIGN_OR_RETURN(RestorePlan plan, RestorePlan::Create(model_->spec(), reader.spec(), {}));
    std::vector<Shard*> shards;
    for (const auto& shard : model_->shards()) shards.push_back(shard.get());
    return Restorer::Create(
        {.reader = &reader, .plan = std::move(plan), .spec = &model_->spec(), .shards = std::move(shards)});
  }
  absl::StatusOr<History> RestoreModel(Restorer& restorer) const {
    return model_->Restore(restorer.restored(), [&]() -> absl::Status {
      RETURN_IF_ERROR(restorer.Write());
      return restorer.Check(restorer.content(), /*replicas=*/1);
    });
  }

  TestWorld world_{{.ranks = 2}};
  const std::shared_ptr<Model> model_ = world_.Create(ModelSpecToProto(checkpoint::TallSpec(5000)));
};

TEST_F(ModelRestoreTest, BeginsAHistoryThatSaysItsParent) {
  const SavedModel saved(model_->spec(), 9);
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(saved, {3, 3}), {}));
  ASSERT_OK_AND_ASSIGN(const auto restorer, PrepareModel(reader));
  ASSERT_OK_AND_ASSIGN(const History history, RestoreModel(*restorer));
  EXPECT_EQ(history.lineage, LineageOfRestore(model_->fingerprint(), reader.manifest().save_id));
  EXPECT_EQ(history.parent, (HistoryParent{{reader.manifest().history}, 12}));
  EXPECT_EQ(model_->state().numbers.commit_number, 12);
  EXPECT_EQ(model_->state().numbers.version, 10);
  EXPECT_EQ(model_->commit_log().client_state(0), SavedModel::ClientState(0));
  for (const auto& shard : model_->shards()) {
    const ShardExtent& extent = shard->extents().front();
    EXPECT_EQ(extent.rows.size(), 2500);
    absl::ReaderMutexLock lock(&shard->mutex());
    EXPECT_EQ(shard->step(extent), saved.common().step_counts[0]);
    EXPECT_EQ(shard->version(), 10);
  }
  // Its masters and moments are those that were saved.
  EXPECT_OK(restorer->Check(restorer->content(), 1));
}

TEST_F(ModelRestoreTest, ModelRestoreDoesAllOfIt) {
  const SavedModel saved(model_->spec(), 9);
  const std::string folder = Write(saved, {3, 3});
  ASSERT_OK_AND_ASSIGN(const auto restore, ModelRestore::Prepare(model_, folder, {}));
  EXPECT_THAT(model_->BeginImport(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_GT(restore->all_bytes(), static_cast<int64_t>(saved.arrays().at("master/w").size()));
  ASSERT_OK_AND_ASSIGN(const History history, restore->Run());
  EXPECT_EQ(history.parent, (HistoryParent{{restore->manifest().history}, 12}));
  EXPECT_EQ(model_->state().numbers.commit_number, 12);
}

TEST_F(ModelRestoreTest, IsSeenWhileItIsUnderWay) {
  const SavedModel saved(model_->spec(), 9);
  ASSERT_OK_AND_ASSIGN(const auto restore, ModelRestore::Prepare(model_, Write(saved, {3, 3}), {}));
  EXPECT_FALSE(Summarize(*model_).restore.has_value());
  const auto look = [&] {
    const ModelSummary summary = Summarize(*model_);
    EXPECT_TRUE(summary.restore.has_value());
    if (summary.restore.has_value()) {
      EXPECT_EQ(summary.restore->done_bytes, 0);
      EXPECT_EQ(summary.restore->all_bytes, restore->all_bytes());
    }
    Trainer trainer;
    trainer.session = 1;
    EXPECT_THAT(model_->Attach(trainer),
                StatusIs(absl::StatusCode::kUnavailable, testing::HasSubstr("a restore (0 %) is being applied")));
    return absl::OkStatus();
  };
  ASSERT_OK(restore->Run(look));
  EXPECT_FALSE(Summarize(*model_).restore.has_value());
}

TEST_F(ModelRestoreTest, ADrainGivesItUp) {
  const SavedModel saved(model_->spec(), 9);
  ASSERT_OK_AND_ASSIGN(const auto restore, ModelRestore::Prepare(model_, Write(saved, {3, 3}), {}));
  const auto drain = [&] {
    model_->BeginDrain(absl::UnavailableError("the daemon stops"));
    return absl::OkStatus();
  };
  EXPECT_THAT(restore->Run(drain), StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("cancelled")));
}

// Peers whose CheckGoesOn() returns an answer of the test.
class AskedPeers final : public RestorePeers {
 public:
  explicit AskedPeers(std::function<absl::Status()> answer) : answer_(std::move(answer)) {}

  std::optional<HistoryId> history() const override { return std::nullopt; }
  bool can_redo() const override { return true; }
  std::string RollbackWhy(const Model&) const override { return {}; }
  absl::Status Begin() override { return absl::OkStatus(); }
  absl::Status CheckGoesOn() override { return answer_(); }
  absl::Status Conclude(const Restorer&) override {
    concluded_ = true;
    return absl::OkStatus();
  }
  Restorer::Progress Whole(const Restorer::Progress& own) const override { return own; }
  void Cancel() override {}

  bool concluded() const { return concluded_; }

 private:
  const std::function<absl::Status()> answer_;
  bool concluded_ = false;
};

TEST_F(ModelRestoreTest, PlanesThatNobodyWillUseAreNotEncodedToTheEnd) {
  const SavedModel saved(model_->spec(), 9);
  ASSERT_OK_AND_ASSIGN(const auto restore, ModelRestore::Prepare(model_, Write(saved, {3, 3}), {}));
  int asked = 0;
  AskedPeers peers([&] { return ++asked < 2 ? absl::OkStatus() : absl::DeadlineExceededError("too late"); });
  EXPECT_THAT(restore->Run([] { return absl::OkStatus(); }, peers),
              StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("too late")));
  EXPECT_EQ(asked, 2);
  EXPECT_FALSE(peers.concluded());
}

TEST_F(ModelRestoreTest, ADrainWhilePlanesAreEncodedGivesItUp) {
  const SavedModel saved(model_->spec(), 9);
  ASSERT_OK_AND_ASSIGN(const auto restore, ModelRestore::Prepare(model_, Write(saved, {3, 3}), {}));
  AskedPeers peers([&] {
    model_->BeginDrain(absl::UnavailableError("the daemon stops"));
    return absl::OkStatus();
  });
  EXPECT_THAT(restore->Run([] { return absl::OkStatus(); }, peers),
              StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("cancelled")));
  EXPECT_FALSE(peers.concluded());
}

TEST_F(ModelRestoreTest, OneThatBreaksOffSpoilsTheModel) {
  const SavedModel saved(model_->spec(), 9);
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(saved, {3, 3}), {}));
  ASSERT_OK_AND_ASSIGN(const auto restorer, PrepareModel(reader));
  restorer->Cancel();
  EXPECT_THAT(RestoreModel(*restorer),
              StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("restore tall: cancelled")));
  EXPECT_THAT(model_->usable(), StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("restore it, or delete")));
  EXPECT_THAT(model_->BeginImport(), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(ModelRestoreTest, AnotherOneMakesAModelUsableThatBrokeOff) {
  const SavedModel saved(model_->spec(), 9);
  const std::string folder = Write(saved, {3, 3});
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(folder, {}));
  {
    ASSERT_OK_AND_ASSIGN(const auto restorer, PrepareModel(reader));
    restorer->Cancel();
    EXPECT_THAT(RestoreModel(*restorer), StatusIs(absl::StatusCode::kDataLoss));
  }
  ASSERT_OK_AND_ASSIGN(const auto restore, ModelRestore::Prepare(model_, folder, {}));
  ASSERT_OK(restore->Run());
  EXPECT_OK(model_->usable());
  EXPECT_EQ(model_->state().numbers.commit_number, 12);
  StateHash(*model_);  // planes match
}

}  // namespace
}  // namespace paramshard::server
