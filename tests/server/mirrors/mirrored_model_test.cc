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
  void SetUp() override { Create(); }
  void Create() {
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
      std::memset(model_->staging(rank).data(), value, model_->staging(rank).size());
    }
    model_->Stage(VersionOf(commit));
  }
  // All bytes that readers read.
  std::vector<uint8_t> Active() const {
    std::vector<uint8_t> bytes;
    for (size_t rank = 0; rank < 2; ++rank) {
      const PublishedPlanes published = model_->published();
      const Memory& planes = *published.ranks[rank].planes;
      const int64_t size = planes.size_bytes() / published.copies;
      const int64_t copy = static_cast<int64_t>(page().gate().generation) % published.copies;
      const auto view = devices_[rank % devices_.size()]->Read(planes.data() + copy * size, size);
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

TEST_F(MirroredModelTest, OnCpuDevicesReadersMapBothCopies) {
  if (!devices_[0]->gpu_uuid().empty()) GTEST_SKIP() << "these are GPUs";
  EXPECT_EQ(model_->published().copies, 2);
  EXPECT_EQ(model_->published().ranks[0].planes->size_bytes(), 2 * model_->layout().arena_bytes(0));
  for (const int commit : {3, 4, 5, 6}) {
    Stage(commit, static_cast<uint8_t>(commit));
    const uint8_t* const staged = model_->staging(0).data();
    ASSERT_OK(model_->Activate(commit));
    EXPECT_THAT(Active(), Each(commit));
    EXPECT_NE(model_->staging(0).data(), staged);
  }
}

// Devices look like GPUs.
class MirroredModelOnGpusTest : public MirroredModelTest {
 protected:
  void SetUp() override {
    faults_.gpu_uuid = "0123456789abcdef";
    Create();
  }
};

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

TEST_F(MirroredModelOnGpusTest, AStagedVersionIsCopied) {
  EXPECT_EQ(model_->published().copies, 1);
  for (const int commit : {3, 4}) {
    Stage(commit, static_cast<uint8_t>(commit));
    ASSERT_OK(model_->Activate(commit));
    EXPECT_THAT(Active(), Each(commit));
  }
}

TEST_F(MirroredModelOnGpusTest, ReadersWaitAfterACopyThatFailed) {
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
