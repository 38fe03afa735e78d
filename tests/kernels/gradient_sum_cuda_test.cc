#include "kernels/reduce/gradient_sum_cuda.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/random_floats.h"
#include "tests/random_seed.h"
#include "tests/status_matchers.h"

namespace paramshard::gpu {
namespace {

// A task on the GPU, and what the host makes of it.
class DeviceTask {
 public:
  // Any values, of which some are not finite; or `normal` ones.
  DeviceTask(GradientType type, int source_count, int64_t count, bool overwrite, int64_t offset, RandomFloats& random,
             bool normal = false)
      : type_(type), overwrite_(overwrite), expected_(normal ? random.Normal(count, 3.0f) : random.Mixed(count)) {
    std::vector<std::vector<uint8_t>> sources;
    std::vector<const void*> host_sources;
    for (int s = 0; s < source_count; ++s) {
      // Any bits of either type: the upper half of a random float32 is a random BF16.
      std::vector<uint8_t> bytes =
          normal ? Normal(type, count, random)
                 : AsBytes(type == GradientType::kFP32 ? random.Mixed(count) : random.AnyBits(count));
      bytes.resize(count * GradientBytes(type));
      sources_.emplace_back(bytes, offset * GradientBytes(type));
      sources.push_back(std::move(bytes));
    }
    for (const std::vector<uint8_t>& source : sources) host_sources.push_back(source.data());
    accumulator_ = DeviceArray<float>(expected_, 4 * offset);
    if (source_count > 0) paramshard::SumGradients(host_sources, type, count, overwrite, expected_.data());
  }

  GradientSumTask task() const {
    GradientSumTask task;
    for (const DeviceArray<uint8_t>& source : sources_) task.sources[task.source_count++] = source.data();
    task.type = type_;
    task.count = static_cast<int64_t>(expected_.size());
    task.overwrite = overwrite_;
    task.accumulator = accumulator_.data();
    return task;
  }

  void Check() const { EXPECT_TRUE(SameBytes(AsBytes(expected_), AsBytes(accumulator_.Download()))); }

  SquareSum ExpectedSquares() const { return SumOfSquares(expected_.data(), static_cast<int64_t>(expected_.size())); }

 private:
  static std::vector<uint8_t> Normal(GradientType type, int64_t count, RandomFloats& random) {
    const std::vector<float> values = random.Normal(count, 3.0f);
    if (type == GradientType::kFP32) return AsBytes(values);
    std::vector<uint16_t> halves;
    for (float value : values) halves.push_back(EncodeBFloat16(value));
    return AsBytes(halves);
  }

  GradientType type_;
  bool overwrite_;
  std::vector<DeviceArray<uint8_t>> sources_;
  std::vector<float> expected_;
  DeviceArray<float> accumulator_;
};

class SumGradientsCudaTest : public GpuTest {};

TEST_F(SumGradientsCudaTest, ManyTasksAreTheHostsSums) {
  const uint64_t seed = FirstSeed(71);
  SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed));
  RandomFloats random(seed);
  std::vector<DeviceTask> tasks;
  for (GradientType type : {GradientType::kFP32, GradientType::kBF16}) {
    for (int source_count : {1, 2, 3, 7, kMaxGradientSources}) {
      for (int64_t count : {0, 1, 7, 4095, 4096, 4097, 20000}) {
        for (bool overwrite : {true, false}) {
          for (int64_t offset : {0, 1}) tasks.emplace_back(type, source_count, count, overwrite, offset, random);
        }
      }
    }
  }
  std::vector<GradientSumTask> views;
  for (const DeviceTask& task : tasks) views.push_back(task.task());
  ASSERT_OK(SumGradients(views, stream()));
  Synchronize();
  for (const DeviceTask& task : tasks) task.Check();
}

TEST_F(SumGradientsCudaTest, NoTasksAreFine) { EXPECT_OK(SumGradients({}, stream())); }

TEST_F(SumGradientsCudaTest, TasksWithoutSourcesAreRefused) {
  EXPECT_THAT(SumGradients({GradientSumTask{}}, stream()),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("1 to 16 sources")));
}

class SquareSummerTest : public GpuTest {
 protected:
  // Runs the tasks at once, and compares accumulators and squares with the host's.
  void ExpectHostResults(const std::vector<DeviceTask>& tasks) {
    std::vector<GradientSumTask> views;
    int64_t elements = 0;
    for (const DeviceTask& task : tasks) elements += views.emplace_back(task.task()).count;
    ASSERT_OK_AND_ASSIGN(SquareSummer summer,
                         SquareSummer::Create(kDevice, static_cast<int64_t>(tasks.size()), elements));
    // What an earlier run has left is of no account.
    for (int run = 0; run < 2; ++run) {
      ASSERT_OK_AND_ASSIGN(const std::vector<SquareSum> squares, summer.Run(views, stream()));
      ASSERT_EQ(squares.size(), tasks.size());
      for (size_t i = 0; i < tasks.size(); ++i) {
        SCOPED_TRACE(absl::StrCat("task ", i, " of ", views[i].count, " elements and ", views[i].source_count,
                                  " sources, run ", run));
        tasks[i].Check();
        const SquareSum expected = tasks[i].ExpectedSquares();
        EXPECT_EQ(squares[i].non_finite, expected.non_finite);
        if (expected.non_finite > 0) continue;
        EXPECT_EQ(squares[i].sum, expected.sum);
      }
      // The second time nothing is added again.
      for (GradientSumTask& view : views) view.source_count = 0;
    }
  }
};

TEST_F(SquareSummerTest, SumsAndTheirSquaresAreTheHosts) {
  RandomFloats random(72);
  std::vector<DeviceTask> tasks;
  for (bool normal : {true, false}) {
    for (GradientType type : {GradientType::kFP32, GradientType::kBF16}) {
      for (int source_count : {0, 1, 2, 5}) {
        for (int64_t count : {0, 1, 255, 257, 4095, 4096, 4097, 20000}) {
          for (bool overwrite : {true, false}) {
            for (int64_t offset : {0, 1}) {
              tasks.emplace_back(type, source_count, count, overwrite && source_count > 0, offset, random, normal);
            }
          }
        }
      }
    }
  }
  ExpectHostResults(tasks);
}

TEST_F(SquareSummerTest, ManyChunksAreSummedInThreeLevels) {
  RandomFloats random(73);
  std::vector<DeviceTask> tasks;
  tasks.emplace_back(GradientType::kBF16, 2, 4096 * 4096 + 5000, true, 0, random, /*normal=*/true);
  tasks.emplace_back(GradientType::kFP32, 0, 1000003, false, 0, random, /*normal=*/true);
  ExpectHostResults(tasks);
}

TEST_F(SquareSummerTest, MoreThanThereIsRoomForIsRefused) {
  ASSERT_OK_AND_ASSIGN(SquareSummer summer, SquareSummer::Create(kDevice, 1, 4096));
  GradientSumTask task;
  task.count = 3 * 4096;
  EXPECT_THAT(summer.Run({task}, stream()),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("of 2 chunks")));
  EXPECT_THAT(summer.Run({GradientSumTask{}, GradientSumTask{}}, stream()),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("at most 1 tasks")));
  EXPECT_THAT(summer.Run({}, stream()), IsOkAndHolds(testing::IsEmpty()));
}

}  // namespace
}  // namespace paramshard::gpu
