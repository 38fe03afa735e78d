#include "kernels/reduce/gradient_sum_cuda.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/float_bits.h"
#include "kernels/formats/bfloat16.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

constexpr GradientType kTypes[] = {GradientType::kFP32, GradientType::kBF16};

// A task on the GPU, and the host's result.
class DeviceTask {
 public:
  struct Types {
    GradientType sources = GradientType::kFP32;
    GradientType accumulator = GradientType::kFP32;
  };

  // Takes any values, some of them not finite; or only normal values.
  DeviceTask(const Types& types, int source_count, int64_t count, bool overwrite, int64_t offset, RandomFloats& random,
             bool normal = false)
      : types_(types),
        count_(count),
        overwrite_(overwrite),
        expected_(Gradients(types.accumulator, count, random, normal)),
        accumulator_(expected_, offset * GradientBytes(types.accumulator)) {
    std::vector<std::vector<uint8_t>> sources;
    std::vector<const void*> host_sources;
    for (int s = 0; s < source_count; ++s) {
      const auto& bytes = sources.emplace_back(Gradients(types.sources, count, random, normal));
      sources_.emplace_back(bytes, offset * GradientBytes(types.sources));
    }
    for (const std::vector<uint8_t>& source : sources) host_sources.push_back(source.data());
    const MutableGradient accumulator = {expected_.data(), types.accumulator};
    if (source_count > 0) paramshard::SumGradients(host_sources, types.sources, count, overwrite, accumulator);
  }

  GradientSumTask task() const {
    GradientSumTask task;
    for (const DeviceArray<uint8_t>& source : sources_) task.sources[task.source_count++] = source.data();
    task.type = types_.sources;
    task.count = count_;
    task.overwrite = overwrite_;
    task.accumulator = {accumulator_.data(), types_.accumulator};
    return task;
  }

  void Check() const { EXPECT_TRUE(SameBytes(expected_, accumulator_.Download())); }

  SquareSum ExpectedSquares() const { return SumOfSquares({expected_.data(), types_.accumulator}, count_); }

 private:
  static std::vector<uint8_t> Gradients(GradientType type, int64_t count, RandomFloats& random, bool normal) {
    std::vector<float> values = normal ? random.Normal(count, 3.0f) : random.Mixed(count);
    if (type == GradientType::kFP32) return AsBytes(values);
    // Any bits: the upper half of a random float32 is a random BF16.
    if (!normal) values = random.AnyBits(count);
    std::vector<uint16_t> halves;
    for (float value : values) {
      halves.push_back(normal ? EncodeBFloat16(value) : static_cast<uint16_t>(FloatBits(value) >> 16));
    }
    return AsBytes(halves);
  }

  Types types_;
  int64_t count_;
  bool overwrite_;
  std::vector<DeviceArray<uint8_t>> sources_;
  std::vector<uint8_t> expected_;
  DeviceArray<uint8_t> accumulator_;
};

std::vector<DeviceTask::Types> AllTypes() {
  std::vector<DeviceTask::Types> all;
  for (GradientType sources : kTypes) {
    for (GradientType accumulator : kTypes) all.push_back({sources, accumulator});
  }
  return all;
}

class SumGradientsCudaTest : public GpuTest {};

TEST_F(SumGradientsCudaTest, ManyTasksAreTheHostsSums) {
  const uint64_t seed = FirstSeed(71);
  SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed));
  RandomFloats random(seed);
  std::vector<DeviceTask> tasks;
  for (const DeviceTask::Types& types : AllTypes()) {
    for (int source_count : {1, 2, 3, 7, kMaxGradientSources}) {
      for (int64_t count : {0, 1, 7, 4095, 4096, 4097, 20000}) {
        for (bool overwrite : {true, false}) {
          for (int64_t offset : {0, 1}) tasks.emplace_back(types, source_count, count, overwrite, offset, random);
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
    // The second run does not depend on the results of the first.
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
    for (const DeviceTask::Types& types : AllTypes()) {
      for (int source_count : {0, 1, 2, 5}) {
        for (int64_t count : {0, 1, 255, 257, 4095, 4096, 4097, 20000}) {
          for (bool overwrite : {true, false}) {
            for (int64_t offset : {0, 1}) {
              tasks.emplace_back(types, source_count, count, overwrite && source_count > 0, offset, random, normal);
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
  tasks.emplace_back(DeviceTask::Types{GradientType::kBF16}, 2, 4096 * 4096 + 5000, true, 0, random, /*normal=*/true);
  tasks.emplace_back(DeviceTask::Types{}, 0, 1000003, false, 0, random, /*normal=*/true);
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
