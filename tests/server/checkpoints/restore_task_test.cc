// A loader in a model's hands.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/model/model_spec_proto.h"
#include "gmock/gmock.h"
#include "server/checkpoints/restore_agreement.h"
#include "server/checkpoints/restore_task.h"
#include "server/models/inspection.h"
#include "server/models/model.h"
#include "tests/server/checkpoints/restore_fixture.h"
#include "tests/server/models/test_world.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using checkpoint::Reader;
using checkpoint::SavedModel;

class RestoreTaskTest : public RestoreTest {
 protected:
  absl::StatusOr<std::unique_ptr<CheckpointLoader>> PrepareModel(const Reader& reader) const {
    ASSIGN_OR_RETURN(RestorePlan plan, RestorePlan::Create(model_->spec(), reader.spec(), {}));
    std::vector<Shard*> shards;
    for (const auto& shard : model_->committed().shards) shards.push_back(shard.get());
    return CheckpointLoader::Create(
        {.reader = &reader, .plan = std::move(plan), .spec = &model_->spec(), .shards = std::move(shards)});
  }
  absl::StatusOr<History> RestoreModel(CheckpointLoader& loader) const {
    return model_->changes().Restore(loader.restored(), [&]() -> absl::Status {
      RETURN_IF_ERROR(loader.Load());
      return loader.Check(loader.content(), /*replicas=*/1);
    });
  }

  TestWorld world_{{.ranks = 2}};
  const std::shared_ptr<Model> model_ = world_.Create(ModelSpecToProto(checkpoint::TallSpec(5000)));
};

TEST_F(RestoreTaskTest, BeginsAHistoryThatSaysItsParent) {
  const SavedModel saved(model_->spec(), 9);
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(saved, {3, 3}), {}));
  ASSERT_OK_AND_ASSIGN(const auto loader, PrepareModel(reader));
  ASSERT_OK_AND_ASSIGN(const History history, RestoreModel(*loader));
  EXPECT_EQ(history.lineage, LineageOfRestore(model_->fingerprint(), reader.manifest().save_id));
  EXPECT_EQ(history.parent, (HistoryParent{{reader.manifest().history}, 12}));
  EXPECT_EQ(model_->state().snapshot().numbers.commit_number, 12);
  EXPECT_EQ(model_->state().snapshot().numbers.version, 10);
  EXPECT_EQ(model_->committed().commits.client_state(0), SavedModel::ClientState(0));
  for (const auto& shard : model_->committed().shards) {
    const ShardExtent& extent = shard->extents()[0];
    EXPECT_EQ(extent.rows.size(), 2500);
    absl::ReaderMutexLock lock(&shard->mutex());
    EXPECT_EQ(shard->numbers(extent).step, saved.common().step_counts[0]);
    EXPECT_EQ(shard->version(), 10);
  }
  // Its masters and moments are those that were saved.
  EXPECT_OK(loader->Check(loader->content(), 1));
}

TEST_F(RestoreTaskTest, DoesAllOfIt) {
  const SavedModel saved(model_->spec(), 9);
  const std::string folder = Write(saved, {3, 3});
  ASSERT_OK_AND_ASSIGN(const auto task, RestoreTask::Prepare(model_, folder));
  EXPECT_THAT(model_->changes().BeginImport(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_GT(task->all_bytes(), static_cast<int64_t>(saved.arrays().at("master/w").size()));
  ASSERT_OK_AND_ASSIGN(const RestoreResult result, task->Run());
  EXPECT_EQ(result.history.parent, (HistoryParent{{task->manifest().history}, 12}));
  EXPECT_EQ(model_->state().snapshot().numbers.commit_number, 12);
}

TEST_F(RestoreTaskTest, IsSeenWhileItIsUnderWay) {
  const SavedModel saved(model_->spec(), 9);
  ASSERT_OK_AND_ASSIGN(const auto task, RestoreTask::Prepare(model_, Write(saved, {3, 3})));
  EXPECT_FALSE(Summarize(*model_).restore.has_value());
  const auto look = [&] {
    const ModelSummary summary = Summarize(*model_);
    EXPECT_TRUE(summary.restore.has_value());
    if (summary.restore.has_value()) {
      EXPECT_EQ(summary.restore->done_bytes, 0);
      EXPECT_EQ(summary.restore->all_bytes, task->all_bytes());
    }
    Trainer trainer;
    trainer.session = 1;
    EXPECT_THAT(model_->trainers().Attach(trainer),
                StatusIs(absl::StatusCode::kUnavailable, testing::HasSubstr("a restore (0 %) is being applied")));
    return absl::OkStatus();
  };
  ASSERT_OK(task->Run(look).status());
  EXPECT_FALSE(Summarize(*model_).restore.has_value());
}

TEST_F(RestoreTaskTest, ADrainGivesItUp) {
  const SavedModel saved(model_->spec(), 9);
  ASSERT_OK_AND_ASSIGN(const auto task, RestoreTask::Prepare(model_, Write(saved, {3, 3})));
  const auto drain = [&] {
    model_->trainers().BeginDrain(absl::UnavailableError("the daemon stops"));
    return absl::OkStatus();
  };
  EXPECT_THAT(task->Run(drain), StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("cancelled")));
}

TEST_F(RestoreTaskTest, PlanesThatNobodyWillUseAreNotEncodedToTheEnd) {
  const SavedModel saved(model_->spec(), 9);
  ASSERT_OK_AND_ASSIGN(const auto task, RestoreTask::Prepare(model_, Write(saved, {3, 3})));
  int asked = 0;
  RestoreAgreement* cancelled = nullptr;
  RestoreAgreement agreement({.at = [&](RestoreAgreement::Point point) {
    EXPECT_EQ(point, RestoreAgreement::Point::kPlanes);
    if (++asked == 2) cancelled->Cancel();
  }});
  cancelled = &agreement;
  EXPECT_THAT(task->Run(agreement, [] { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("the daemon drains")));
  EXPECT_EQ(asked, 2);
}

TEST_F(RestoreTaskTest, ADrainWhilePlanesAreEncodedGivesItUp) {
  const SavedModel saved(model_->spec(), 9);
  ASSERT_OK_AND_ASSIGN(const auto task, RestoreTask::Prepare(model_, Write(saved, {3, 3})));
  int asked = 0;
  RestoreAgreement agreement({.at = [&](RestoreAgreement::Point) {
    if (++asked == 1) model_->trainers().BeginDrain(absl::UnavailableError("the daemon stops"));
  }});
  EXPECT_THAT(task->Run(agreement, [] { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("the daemon drains")));
  EXPECT_EQ(asked, 1);
}

TEST_F(RestoreTaskTest, OneThatBreaksOffSpoilsTheModel) {
  const SavedModel saved(model_->spec(), 9);
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(saved, {3, 3}), {}));
  ASSERT_OK_AND_ASSIGN(const auto loader, PrepareModel(reader));
  loader->Cancel();
  EXPECT_THAT(RestoreModel(*loader),
              StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("restore tall: cancelled")));
  EXPECT_THAT(model_->state().usable(),
              StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("restore it, or delete")));
  EXPECT_THAT(model_->changes().BeginImport(), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(RestoreTaskTest, AnotherOneMakesAModelUsableThatBrokeOff) {
  const SavedModel saved(model_->spec(), 9);
  const std::string folder = Write(saved, {3, 3});
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(folder, {}));
  {
    ASSERT_OK_AND_ASSIGN(const auto loader, PrepareModel(reader));
    loader->Cancel();
    EXPECT_THAT(RestoreModel(*loader), StatusIs(absl::StatusCode::kDataLoss));
  }
  ASSERT_OK_AND_ASSIGN(const auto task, RestoreTask::Prepare(model_, folder));
  ASSERT_OK(task->Run().status());
  EXPECT_OK(model_->state().usable());
  EXPECT_EQ(model_->state().snapshot().numbers.commit_number, 12);
  StateHash(*model_);  // planes match
}

}  // namespace
}  // namespace paramshard::server
