// A device that breaks, in use and in the middle of an import.
#include "gmock/gmock.h"
#include "server/models/inspection.h"
#include "tests/server/models/faulty_world.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class BrokenDeviceTest : public FaultyWorldTest {
 protected:
  void SetUp() override { Open(); }

  void Break() { devices_.back()->health().Break(absl::InternalError(kWhy)); }
  static constexpr char kWhy[] = "it is broken: restart the daemon";

  absl::StatusOr<VerifySummary> Verify(const Model& model) {
    return VerifyModel(model, [](const ExtentVerification&) { return absl::OkStatus(); });
  }
  // Writes ones to every extent's master.
  absl::Status Import(Model& model) {
    const auto write = [&]() -> absl::Status {
      for (const auto& shard : model.committed().shards) {
        for (const ShardExtent& extent : shard->extents()) {
          const absl::Status written =
              shard->Write(extent, StateTensor::kMaster, std::vector<float>(extent.elements, 1.0f));
          if (!written.ok()) return written;
        }
      }
      return absl::OkStatus();
    };
    return model.changes().Import({.commit_number = 5, .version = 5}, write).status();
  }
};

TEST_F(BrokenDeviceTest, NothingNewBeginsOnItAndInspectionGoesOn) {
  const std::shared_ptr<Model> model = world_->Create(Spec());
  const std::string hash = StateHash(*model);
  EXPECT_THAT(ListBrokenDevices(model->world()), IsEmpty());
  Break();
  const auto is_refused = StatusIs(absl::StatusCode::kInternal, HasSubstr(kWhy));
  EXPECT_THAT(FakeTrainer(model.get(), 0).Attach(), is_refused);
  v1::ModelSpec another = Spec();
  another.set_name("another");
  EXPECT_THAT(world_->store().CreateOrJoin(Parse(another)), is_refused);
  EXPECT_THAT(Import(*model), is_refused);
  EXPECT_OK(model->state().usable()) << "nothing was changed";
  EXPECT_THAT(Verify(*model), is_refused);
  EXPECT_THAT(ListShards(*model, 0, 100), Not(IsEmpty()));
  EXPECT_THAT(CountMemory(*model), Not(IsEmpty()));
  const std::vector<BrokenDevice> broken = ListBrokenDevices(model->world());
  ASSERT_THAT(broken, SizeIs(1));
  EXPECT_EQ(broken[0].device, devices_.back()->Name());
  EXPECT_EQ(broken[0].reason, kWhy);
  EXPECT_OK(world_->store().Delete("m", ""));
}

TEST_F(BrokenDeviceTest, AnImportThatBreaksOffMakesTheModelUnusable) {
  const std::shared_ptr<Model> model = world_->Create(Spec());
  faults_.writes = 0;
  faults_.failing_write = 2;
  const auto is_lost =
      StatusIs(absl::StatusCode::kDataLoss,
               AllOf(HasSubstr("model m: an import broke off in the middle"), HasSubstr("lets it fail")));
  EXPECT_THAT(Import(*model), is_lost);
  EXPECT_THAT(model->state().usable(), is_lost);
  EXPECT_THAT(FakeTrainer(model.get(), 0).Attach(), is_lost);
  EXPECT_THAT(Import(*model), is_lost);
  EXPECT_THAT(Verify(*model), is_lost);
  EXPECT_THAT(Summarize(*model).unusable, HasSubstr("broke off"));
  EXPECT_EQ(model->committed().commits.numbers().commit_number, 0);
  EXPECT_OK(world_->store().Delete("m", ""));
  const std::shared_ptr<Model> again = world_->Create(Spec());
  EXPECT_OK(Import(*again));
  ExpectEpochWorks(*again);
}

TEST_F(BrokenDeviceTest, AnImportThatIsRefusedBeforeItsFirstWriteChangesNothing) {
  const std::shared_ptr<Model> model = world_->Create(Spec());
  {
    const FakeTrainers trainers = AttachAll(*model);
    EXPECT_THAT(Import(*model), StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  EXPECT_OK(model->state().usable());
  EXPECT_OK(Import(*model));
  ExpectEpochWorks(*model);
}

}  // namespace
}  // namespace paramshard::server
