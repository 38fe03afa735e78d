#include "server/mirrors/mirrored_model.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/model/layout_fingerprint.h"
#include "common/model/model_spec_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/device/faulty_device.h"
#include "tests/server/mirrors/version_of.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class MirroredModelTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(ModelSpec spec, ParseModelSpec(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {8, 4})})})));
    Layout layout(std::move(spec), 2);
    const uint64_t fingerprint = LayoutFingerprint(layout);
    ASSERT_OK_AND_ASSIGN(devices_, OpenFaultyDevices(2, &faults_));
    std::vector<ComputeDevice*> devices;
    for (const auto& device : devices_) devices.push_back(device.get());
    ASSERT_OK_AND_ASSIGN(model_,
                         MirroredModel::Create(std::move(layout), 1, fingerprint, devices, {.metrics = &metrics_}));
    ASSERT_OK_AND_ASSIGN(reader_, model_->publication().AddReader({.name = "r"}));
  }

  void Stage(int64_t commit, uint8_t value) {
    model_->BeginStaging();
    for (int rank = 0; rank < 2; ++rank) {
      std::memset(model_->staging(rank).data(), value, model_->staging(rank).size_bytes());
    }
    model_->Stage(VersionOf(commit));
  }
  // All bytes that readers map.
  std::vector<uint8_t> Active() const {
    std::vector<uint8_t> bytes;
    for (size_t rank = 0; rank < 2; ++rank) {
      const Memory& planes = *model_->published().ranks[rank].planes;
      const auto view = devices_[rank % devices_.size()]->Read(planes.data(), planes.size_bytes());
      EXPECT_OK(view.status());
      if (view.ok()) bytes.insert(bytes.end(), view->bytes().begin(), view->bytes().end());
    }
    return bytes;
  }
  wire::PublicationPage page() const { return wire::PublicationPage(reader_->publication_page().data()); }

  MetricRegistry metrics_;
  DeviceFaults faults_;
  std::vector<std::unique_ptr<ComputeDevice>> devices_;
  std::shared_ptr<MirroredModel> model_;
  std::unique_ptr<Publication::Reader> reader_;
};

TEST_F(MirroredModelTest, ReadersWaitForTheFirstVersion) {
  EXPECT_FALSE(page().gate().readable());
  EXPECT_EQ(page().text(), "the mirror has received no version yet");
  EXPECT_EQ(model_->active(), std::nullopt);
}

TEST_F(MirroredModelTest, AStagedVersionIsReadOnceItIsActive) {
  Stage(3, 7);
  EXPECT_EQ(model_->staged(), VersionOf(3));
  EXPECT_FALSE(page().gate().readable());
  ASSERT_OK(model_->Activate(std::nullopt));
  EXPECT_THAT(Active(), Each(7));
  EXPECT_TRUE(page().gate().readable());
  EXPECT_EQ(page().version(), VersionOf(3));
  EXPECT_GT(metrics_.sum_nanoseconds(Metric::kMirrorVersion, static_cast<int>(MirrorPhase::kActivate)), 0);
  Stage(4, 8);
  EXPECT_THAT(Active(), Each(7));
  EXPECT_EQ(model_->active(), VersionOf(3));
  ASSERT_OK(model_->Activate(4));
  EXPECT_THAT(Active(), Each(8));
  EXPECT_EQ(model_->staged(), std::nullopt);
}

TEST_F(MirroredModelTest, ActivationNamesWhatIsThere) {
  EXPECT_THAT(model_->Activate(5), StatusIs(absl::StatusCode::kFailedPrecondition,
                                            HasSubstr("want commit 5 staged, got no commit staged and no commit")));
  Stage(3, 7);
  ASSERT_OK(model_->Activate(3));
  ASSERT_OK(model_->Activate(3));
  Stage(4, 8);
  EXPECT_THAT(model_->Activate(5),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("got commit 4 staged and commit 3 active")));
}

TEST_F(MirroredModelTest, ReadersWaitAfterACopyThatFailed) {
  Stage(3, 7);
  ASSERT_OK(model_->Activate(std::nullopt));
  Stage(4, 8);
  faults_.failing_copies = true;
  EXPECT_THAT(model_->Activate(std::nullopt), StatusIs(absl::StatusCode::kInternal));
  EXPECT_FALSE(page().gate().readable());
  EXPECT_EQ(page().text(), "the mirror has no whole version: copy: the test lets it fail");
  EXPECT_EQ(model_->active(), std::nullopt);
  faults_.failing_copies = false;
  Stage(5, 9);
  ASSERT_OK(model_->Activate(std::nullopt));
  EXPECT_THAT(Active(), Each(9));
  EXPECT_EQ(page().version(), VersionOf(5));
}

TEST_F(MirroredModelTest, ReadersHearOfTheEnd) {
  Stage(3, 7);
  ASSERT_OK(model_->Activate(3));
  model_->End("model m was deleted");
  EXPECT_EQ(page().gate().state, wire::Gate::State::kEnded);
  EXPECT_EQ(page().text(), "model m was deleted");
}

}  // namespace
}  // namespace paramshard::server
