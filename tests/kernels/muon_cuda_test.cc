#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/optim/muon.h"
#include "kernels/optim/muon_kernels.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/golden_step.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

class MuonKernelsTest : public GpuTest {};

std::vector<uint16_t> Rounded(const std::vector<float>& values) {
  std::vector<uint16_t> rounded;
  for (float value : values) rounded.push_back(EncodeBFloat16(value));
  return rounded;
}

// An array of float32 or BF16 numbers on the GPU, and the same on the host.
class StoredFloats {
 public:
  StoredFloats(const std::vector<float>& values, bool is_bf16, int64_t first)
      : wide_(values), narrow_(Rounded(values)), is_bf16_(is_bf16) {
    const int64_t offset = first * (is_bf16 ? 2 : 4);
    if (is_bf16) {
      narrow_on_gpu_ = DeviceArray<uint16_t>(narrow_, offset);
    } else {
      wide_on_gpu_ = DeviceArray<float>(wide_, offset);
    }
  }

  void* host() { return is_bf16_ ? static_cast<void*>(narrow_.data()) : wide_.data(); }
  void* gpu() const { return is_bf16_ ? static_cast<void*>(narrow_on_gpu_.data()) : wide_on_gpu_.data(); }
  GradientType gradient_type() const { return is_bf16_ ? GradientType::kBF16 : GradientType::kFP32; }
  MomentType moment_type() const { return is_bf16_ ? MomentType::kBF16 : MomentType::kFP32; }

  testing::AssertionResult IsTheSame() const {
    return is_bf16_ ? SameBytes(AsBytes(narrow_), AsBytes(narrow_on_gpu_.Download()))
                    : SameBytes(AsBytes(wide_), AsBytes(wide_on_gpu_.Download()));
  }

 private:
  std::vector<float> wide_;
  std::vector<uint16_t> narrow_;
  const bool is_bf16_;
  DeviceArray<float> wide_on_gpu_;
  DeviceArray<uint16_t> narrow_on_gpu_;
};

TEST_F(MuonKernelsTest, MomentumAndUpdateAreThoseOfTheHost) {
  constexpr uint64_t kSeed = 83;
  SCOPED_TRACE(kSeed);
  RandomFloats random(kSeed);
  OptimizerStep step;
  step.momentum = 0.95f;
  step.gradient_scale = 0.375f;
  for (const int64_t count : {1, 4, 5003, 4 * 4096 + 8}) {
    for (int choice = 0; choice < 32; ++choice) {
      const bool has_bf16_gradients = (choice & 1) != 0;
      const bool has_bf16_momentum = (choice & 2) != 0;
      const bool is_nesterov = (choice & 4) != 0;
      const bool is_stepped = (choice & 8) != 0;
      const int64_t first = (choice & 16) != 0 ? 1 : 0;
      SCOPED_TRACE(absl::StrCat(count, " elements, choice ", choice));
      step.optimizer = is_nesterov ? Optimizer::kMuonNesterov : Optimizer::kMuon;
      StoredFloats gradient(random.Mixed(count), has_bf16_gradients, first);
      StoredFloats momentum(random.Mixed(count), has_bf16_momentum, first);
      StoredFloats fresh(std::vector<float>(count), has_bf16_momentum, first);
      std::vector<uint16_t> update(count);
      const DeviceArray<uint16_t> update_on_gpu(update, first * 2);
      const ConstGradient host_gradient = {gradient.host(), gradient.gradient_type()};
      const MutableMoment old = {momentum.host(), nullptr, momentum.moment_type()};
      const MutableMoment stepped = {fresh.host(), nullptr, fresh.moment_type()};
      if (!is_stepped) StepMuonMomentum(step, host_gradient, old, stepped, 1, count);
      MakeMuonUpdate(step, host_gradient, is_stepped ? old : stepped, 1, count, update.data());
      MuonElements elements = {.step = step,
                               .gradient = {gradient.gpu(), gradient.gradient_type()},
                               .momentum = {momentum.gpu(), nullptr, momentum.moment_type()},
                               .is_stepped = is_stepped,
                               .update = update_on_gpu.data(),
                               .count = count};
      if (!is_stepped) elements.fresh = {fresh.gpu(), nullptr, fresh.moment_type()};
      ASSERT_OK(StepMuon({elements}, stream()));
      Synchronize();
      EXPECT_TRUE(momentum.IsTheSame());
      EXPECT_TRUE(fresh.IsTheSame());
      EXPECT_TRUE(SameBytes(AsBytes(update), AsBytes(update_on_gpu.Download())));
    }
  }
}

TEST_F(MuonKernelsTest, GoldenStepsHaveTheirMomentumAndDirection) {
  for (const GoldenCase& golden : GoldenCases("muon_step")) {
    SCOPED_TRACE(golden.name());
    const int64_t count = golden.rows() * golden.cols();
    const bool is_bf16 = golden.options().at("exp_avg") == "bf16";
    const std::string role = is_bf16 ? "exp_avg_bf16" : "exp_avg";
    const DeviceArray<uint8_t> momentum(golden.Bytes(role));
    const std::vector<float> gradients = golden.Values<float>("grad");
    const DeviceArray<uint16_t> update{std::vector<uint16_t>(count)};
    const nlohmann::json& steps = golden.options().at("steps");
    for (size_t t = 0; t < steps.size(); ++t) {
      const DeviceArray<float> gradient(
          std::vector<float>(gradients.begin() + t * count, gradients.begin() + (t + 1) * count));
      const MutableMoment moment = {momentum.data(), nullptr, is_bf16 ? MomentType::kBF16 : MomentType::kFP32};
      ASSERT_OK(StepMuon({{.step = MuonStepOf(golden.options(), steps[t]),
                           .gradient = {gradient.data(), GradientType::kFP32},
                           .momentum = moment,
                           .fresh = moment,
                           .update = update.data(),
                           .count = count}},
                         stream()));
      Synchronize();
      ExpectStep(golden, "expected_" + role, t, momentum.Download());
      ExpectStep(golden, "expected_direction", t, update.Download());
    }
  }
}

}  // namespace
}  // namespace paramshard::gpu
