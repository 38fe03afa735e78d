#include "kernels/reduce/gradient_sum_cuda.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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
  DeviceTask(GradientType type, int source_count, int64_t count, bool overwrite, int64_t offset, RandomFloats& random)
      : type_(type), overwrite_(overwrite), expected_(random.Mixed(count)) {
    std::vector<std::vector<uint8_t>> sources;
    std::vector<const void*> host_sources;
    for (int s = 0; s < source_count; ++s) {
      // Any bits of either type: the upper half of a random float32 is a random BF16.
      std::vector<uint8_t> bytes = AsBytes(type == GradientType::kFP32 ? random.Mixed(count) : random.AnyBits(count));
      bytes.resize(count * GradientBytes(type));
      sources_.emplace_back(bytes, offset * GradientBytes(type));
      sources.push_back(std::move(bytes));
    }
    for (const std::vector<uint8_t>& source : sources) host_sources.push_back(source.data());
    accumulator_ = DeviceArray<float>(expected_, 4 * offset);
    paramshard::SumGradients(host_sources, type, count, overwrite, expected_.data());
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

 private:
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

}  // namespace
}  // namespace paramshard::gpu
