// Extents that are looked at in several parts: in every format the answers equal the whole extent's, and no part is
// large.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "server/models/inspection.h"
#include "server/state/plane_check.h"
#include "tests/server/models/faulty_world.h"
#include "tests/support/every_format.h"

namespace paramshard::server {
namespace {

constexpr int64_t kRowsOfARank = 130;
constexpr int64_t kColumns = 8192;
constexpr int64_t kPartBytes = 4 << 20;

class LargeExtentsTest : public FaultyWorldTest, public testing::WithParamInterface<Format> {
 protected:
  void SetUp() override {
    Open();
    if (IsSkipped() || HasFatalFailure()) return;
    rows_ = kRowsOfARank * static_cast<int64_t>(devices_.size());
    v1::ParameterSpec weight = MakeParameter("w", {rows_, kColumns}, static_cast<v1::Format>(GetParam()));
    weight.mutable_initial_value()->mutable_normal()->set_standard_deviation(0.1f);
    weight.set_exp_avg_type(v1::MOMENT_TYPE_FP16);
    model_ = world_->Create(MakeSpec("m", {MakeUnit("u", {weight})}));
    ASSERT_GT(Extent().elements * static_cast<int64_t>(sizeof(float)), kPartBytes);
    faults_.largest_read = 0;
  }

  const Shard& FirstShard() const { return *model_->committed().shards.front(); }
  const ShardExtent& Extent() const { return *FirstShard().extents().Find(0, 0); }
  bool PlanesMatch() const {
    const Shard& shard = FirstShard();
    absl::ReaderMutexLock lock(&shard.mutex());
    return *PlanesMatchMaster(shard, Extent());
  }

  int64_t rows_ = 0;
  std::shared_ptr<Model> model_;
};

TEST_P(LargeExtentsTest, AreVerifiedInParts) {
  const std::string hash = StateHash(*model_);
  EXPECT_LE(faults_.largest_read, kPartBytes);
  EXPECT_EQ(FirstShard().extents().Parts(Extent()).size(), 2u);
  if (test::TestDevices() != "cpu") return;
  // In place, in the last part.
  ASSERT_OK_AND_ASSIGN(const std::vector<PlaneViews> planes, PlaneBytes(FirstShard().memory(), Extent()));
  for (const PlaneViews& plane : planes) {
    for (const HostView* view : {&plane.data, &plane.scales, &plane.amax}) {
      if (view->size() == 0) continue;
      uint8_t& last = const_cast<uint8_t&>(view->bytes().back());
      last ^= 1;
      EXPECT_FALSE(PlanesMatch());
      last ^= 1;
      EXPECT_TRUE(PlanesMatch());
    }
  }
  EXPECT_EQ(StateHash(*model_), hash);
}

TEST_P(LargeExtentsTest, AreMeasuredInParts) {
  ASSERT_OK_AND_ASSIGN(const ParameterDescription described, DescribeParameter(*model_, "w"));
  ASSERT_OK_AND_ASSIGN(const RankedStats ranked, ListParameterStats(*model_, 10, [] { return false; }));
  EXPECT_LE(faults_.largest_read, kPartBytes);

  const std::vector<float> master = *FirstShard().arrays().Read(Extent(), StateTensor::kMaster);
  const std::vector<PlaneViews> planes = *PlaneBytes(FirstShard().memory(), Extent());
  const PlaneViews& row_wise = planes.front();
  const PlaneStatistics whole =
      MeasurePlane(EncodingOf(FirstShard().extents().Spec(Extent()).encoding),
                   {.data = row_wise.data.data(), .scales = row_wise.scales.data(), .amax = row_wise.amax.data()},
                   static_cast<int64_t>(row_wise.scales.size()), master, kColumns);
  const PlaneStatistics& parts = described.extents.front().planes;
  EXPECT_EQ(parts.elements, whole.elements);
  EXPECT_EQ(parts.zeros, whole.zeros);
  EXPECT_EQ(parts.saturated, whole.saturated);
  EXPECT_EQ(parts.amax, whole.amax);
  EXPECT_EQ(parts.max_error, whole.max_error);
  EXPECT_EQ(parts.scale_counts, whole.scale_counts);
  EXPECT_NEAR(parts.RelativeError(), whole.RelativeError(), 1e-12);
  ASSERT_EQ(ranked.parameters.size(), 1u);
  EXPECT_EQ(ranked.parameters[0].planes.elements, rows_ * kColumns);
}

INSTANTIATE_TEST_SUITE_P(Formats, LargeExtentsTest, testing::ValuesIn(EveryFormat()),
                         [](const auto& info) { return std::string(FormatName(info.param)); });

}  // namespace
}  // namespace paramshard::server
