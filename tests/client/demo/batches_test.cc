#include "client/demo/batches.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard::demo {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

std::vector<int64_t> EpochOf(const Batches& batches, int64_t epoch, int world_size) {
  std::vector<int64_t> samples;
  for (int64_t batch = 0; batch < batches.batches_per_epoch(); ++batch) {
    for (int rank = 0; rank < world_size; ++rank) {
      const Batch part = batches.Take(epoch * batches.batches_per_epoch() + batch, rank, world_size);
      samples.insert(samples.end(), part.samples.begin(), part.samples.end());
    }
  }
  return samples;
}

TEST(BatchesTest, AnEpochHasEverySampleOnceHoweverManyRanksShareIt) {
  const Batches batches(50, 16, 7);
  EXPECT_EQ(batches.batches_per_epoch(), 4);
  const std::vector<int64_t> alone = EpochOf(batches, 0, 1);
  EXPECT_EQ(EpochOf(batches, 0, 3), alone);
  EXPECT_EQ(EpochOf(batches, 0, 20), alone);  // more ranks than samples in the last batch
  std::vector<int64_t> every(50);
  std::iota(every.begin(), every.end(), 0);
  EXPECT_THAT(alone, UnorderedElementsAreArray(every));
  EXPECT_NE(alone, every);
}

TEST(BatchesTest, TheOrderDependsOnSeedAndEpochAlone) {
  const std::vector<int64_t> order = EpochOf(Batches(50, 16, 7), 3, 1);
  EXPECT_EQ(EpochOf(Batches(50, 10, 7), 3, 1), order);
  EXPECT_NE(EpochOf(Batches(50, 16, 8), 3, 1), order);
  EXPECT_NE(EpochOf(Batches(50, 16, 7), 4, 1), order);
}

TEST(BatchesTest, TheLastBatchIsSmaller) { EXPECT_EQ(Batches(50, 16, 7).Take(3, 0, 1).global_samples, 2); }

TEST(TrainingPositionTest, ComesBackExactly) {
  const TrainingPosition position{.step = 317, .reported_step = 300, .loss_sum = 1.0 / 3.0, .loss_count = 544};
  ASSERT_OK_AND_ASSIGN(const TrainingPosition back, TrainingPosition::FromJson(position.ToJson()));
  EXPECT_EQ(back.step, 317);
  EXPECT_EQ(back.reported_step, 300);
  EXPECT_EQ(back.loss_sum, 1.0 / 3.0);
  EXPECT_EQ(back.loss_count, 544);
}

TEST(TrainingPositionTest, ALossThatIsNoNumberComesBackToo) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double loss : {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity}) {
    ASSERT_OK_AND_ASSIGN(const TrainingPosition back,
                         TrainingPosition::FromJson(TrainingPosition{.step = 3, .loss_sum = loss}.ToJson()));
    EXPECT_EQ(back.step, 3);
    EXPECT_TRUE(back.loss_sum == loss || (std::isnan(back.loss_sum) && std::isnan(loss))) << back.loss_sum;
  }
}

TEST(TrainingPositionTest, OtherTextsAreRefused) {
  for (const char* text : {"", "{", "[]", "7", "{}", R"({"step":"1","reported_step":0,"loss_sum":0,"loss_count":0})",
                           R"({"step":-1,"reported_step":0,"loss_sum":0,"loss_count":0})",
                           R"({"step":1e300,"reported_step":0,"loss_sum":0,"loss_count":0})",
                           R"({"step":1,"reported_step":0,"loss_sum":"1.5","loss_count":0})"}) {
    EXPECT_THAT(TrainingPosition::FromJson(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("training position")))
        << text;
  }
}

}  // namespace
}  // namespace paramshard::demo
