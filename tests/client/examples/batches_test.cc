#include "client/examples/batches.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "tests/status_matchers.h"

namespace paramshard::examples {
namespace {

using ::testing::HasSubstr;

// Labels count the samples, so that a label says which sample it is.
DataSet Numbered(int samples) {
  DataSet set;
  for (int i = 0; i < samples; ++i) {
    set.labels.push_back(i);
    set.pixels.insert(set.pixels.end(), kPixels, static_cast<float>(i));
  }
  return set;
}

std::vector<int> EpochOf(const Batches& batches, int64_t epoch, int world_size) {
  std::vector<int> labels;
  for (int64_t batch = 0; batch < batches.batches_per_epoch(); ++batch) {
    for (int rank = 0; rank < world_size; ++rank) {
      const Batch part = batches.Take(epoch, batch, rank, world_size);
      for (size_t i = 0; i < part.labels.size(); ++i) EXPECT_EQ(part.pixels[i * kPixels], part.labels[i]);
      labels.insert(labels.end(), part.labels.begin(), part.labels.end());
    }
  }
  return labels;
}

TEST(BatchesTest, AnEpochHasEverySampleOnceHoweverManyRanksShareIt) {
  const DataSet data = Numbered(50);
  const Batches batches(&data, 16, 7);
  EXPECT_EQ(batches.batches_per_epoch(), 4);
  const std::vector<int> alone = EpochOf(batches, 0, 1);
  EXPECT_EQ(EpochOf(batches, 0, 3), alone);
  EXPECT_EQ(EpochOf(batches, 0, 20), alone);  // more ranks than samples in the last batch
  std::vector<int> sorted = alone;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, data.labels);
  EXPECT_NE(sorted, alone);
}

TEST(BatchesTest, TheOrderDependsOnSeedAndEpochAlone) {
  const DataSet data = Numbered(50);
  const std::vector<int> order = EpochOf(Batches(&data, 16, 7), 3, 1);
  EXPECT_EQ(EpochOf(Batches(&data, 10, 7), 3, 1), order);
  EXPECT_NE(EpochOf(Batches(&data, 16, 8), 3, 1), order);
  EXPECT_NE(EpochOf(Batches(&data, 16, 7), 4, 1), order);
}

TEST(BatchesTest, TheLastBatchIsSmaller) {
  const DataSet data = Numbered(50);
  EXPECT_EQ(Batches(&data, 16, 7).Take(0, 3, 0, 1).global_samples, 2);
}

TEST(TrainingPositionTest, ComesBackExactly) {
  const TrainingPosition position{.epoch = 3, .batch = 17, .loss_sum = 1.0 / 3.0, .loss_count = 544};
  ASSERT_OK_AND_ASSIGN(const TrainingPosition back, TrainingPosition::FromJson(position.ToJson()));
  EXPECT_EQ(back.epoch, 3);
  EXPECT_EQ(back.batch, 17);
  EXPECT_EQ(back.loss_sum, 1.0 / 3.0);
  EXPECT_EQ(back.loss_count, 544);
}

TEST(TrainingPositionTest, OtherTextsAreRefused) {
  for (const char* text : {"", "{", "[]", "7", "{}", R"({"epoch":1,"batch":"2","loss_sum":0,"loss_count":0})"}) {
    EXPECT_THAT(TrainingPosition::FromJson(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("training position")))
        << text;
  }
}

}  // namespace
}  // namespace paramshard::examples
