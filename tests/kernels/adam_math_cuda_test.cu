// The GPU's shortcuts against the formulas that they stand for: billions of elements, counted on the GPU.

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/packed_casts_cuda.h"
#include "kernels/optim/adam.h"
#include "kernels/optim/adam_math_cuda.h"
#include "kernels/random/philox.h"
#include "tests/kernels/gpu_test.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 132 * 8;

// What moments look like.
enum class Moments { kAnyBits, kOrdinary, kSmall, kTiny };

// A float32 with a random sign and mantissa, and an exponent in [low, high); 0 makes it subnormal.
__device__ float RandomFloat(uint32_t mantissa_bits, uint32_t exponent_bits, uint32_t low, uint32_t high) {
  const uint32_t exponent = low + exponent_bits % (high - low);
  return FloatFromBits((mantissa_bits & 0x807fffffu) | exponent << 23);
}

__device__ AdamElement RandomElement(Moments moments, uint64_t index) {
  const PhiloxCounter counter = {{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 1, 0}};
  const PhiloxBlock a = Philox4x32(counter, {{17, static_cast<uint32_t>(moments)}});
  const PhiloxBlock b = Philox4x32(counter, {{18, static_cast<uint32_t>(moments)}});
  switch (moments) {
    case Moments::kAnyBits:
      return {FloatFromBits(a.word[0]), FloatFromBits(a.word[1]), FloatFromBits(a.word[2])};
    case Moments::kOrdinary:
      return {RandomFloat(a.word[0], b.word[0], 110, 130), RandomFloat(a.word[1], b.word[1], 60, 170),
              fabsf(RandomFloat(a.word[2], b.word[2], 30, 193))};
    case Moments::kSmall:
      return {RandomFloat(a.word[0], b.word[0], 0, 130), RandomFloat(a.word[1], b.word[1], 0, 130),
              fabsf(RandomFloat(a.word[2], b.word[2], 0, 150))};
    case Moments::kTiny: {
      // Few leading bits, which make ties; the master is zero, so that nothing hides the quotient.
      const uint32_t first = (a.word[1] & 0x80000000u) | (a.word[1] & 0x7fffffu) >> b.word[1] % 24;
      const uint32_t second = (a.word[2] & 0xffffffu) >> b.word[2] % 25;
      return {0.0f, FloatFromBits(first + (b.word[3] % 40 << 23)), FloatFromBits(second)};
    }
  }
  return {};
}

__device__ float RandomGradient(Moments moments, uint64_t index) {
  const PhiloxCounter counter = {{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 2, 0}};
  const PhiloxBlock words = Philox4x32(counter, {{19, static_cast<uint32_t>(moments)}});
  if (moments == Moments::kAnyBits) return FloatFromBits(words.word[0]);
  if (words.word[1] % 4 != 0) return 0.0f;
  return moments == Moments::kOrdinary ? RandomFloat(words.word[0], words.word[2], 90, 140)
                                       : RandomFloat(words.word[0], words.word[2], 0, 110);
}

__device__ bool SameBits(float a, float b) { return FloatBits(a) == FloatBits(b); }

__global__ void CountWrongUpdates(AdamConstants constants, Moments moments, uint64_t quads, unsigned long long* wrong) {
  for (uint64_t q = uint64_t{blockIdx.x} * kThreads + threadIdx.x; q < quads; q += uint64_t{gridDim.x} * kThreads) {
    float gradients[4];
    AdamElement elements[4];
    AdamElement expected[4];
    for (int i = 0; i < 4; ++i) {
      gradients[i] = RandomGradient(moments, q * 4 + i);
      elements[i] = RandomElement(moments, q * 4 + i);
      expected[i] = UpdateByFormula(constants.step, gradients[i], elements[i]);
    }
    UpdateAdamElements(constants, gradients, elements);
    for (int i = 0; i < 4; ++i) {
      const bool same = SameBits(elements[i].master, expected[i].master) &&
                        SameBits(elements[i].exp_avg, expected[i].exp_avg) &&
                        SameBits(elements[i].exp_avg_sq, expected[i].exp_avg_sq);
      if (!same) atomicAdd(wrong, 1ull);
    }
  }
}

// One thread per pair of float32 of neighboring bits.
__global__ void CountWrongCasts(unsigned long long* wrong) {
  const uint64_t stride = uint64_t{gridDim.x} * kThreads;
  for (uint64_t pair = uint64_t{blockIdx.x} * kThreads + threadIdx.x; pair < (1ull << 31); pair += stride) {
    const float a = FloatFromBits(static_cast<uint32_t>(pair * 2));
    const float b = FloatFromBits(static_cast<uint32_t>(pair * 2 + 1));
    const uint32_t bfloat16 = EncodeBFloat16(a) | uint32_t{EncodeBFloat16(b)} << 16;
    const uint32_t e4m3 = (E4M3::Encode(a) | uint32_t{E4M3::Encode(b)} << 8) * 0x10001u;
    const uint32_t e5m2 = (E5M2::Encode(a) | uint32_t{E5M2::Encode(b)} << 8) * 0x10001u;
    if (EncodeBFloat16Pair(a, b) != bfloat16) atomicAdd(&wrong[0], 1ull);
    if (EncodeFloat8Quad<E4M3>(a, b, a, b) != e4m3) atomicAdd(&wrong[1], 1ull);
    if (EncodeFloat8Quad<E5M2>(a, b, a, b) != e5m2) atomicAdd(&wrong[2], 1ull);
  }
}

class AdamMathCudaTest : public GpuTest {
 protected:
  uint64_t WrongUpdates(const AdamStep& step, Moments moments) {
    constexpr uint64_t kQuads = 1ull << 24;
    const DeviceArray<unsigned long long> wrong(std::vector<unsigned long long>{0});
    CountWrongUpdates<<<kBlocks, kThreads, 0, stream()>>>(MakeAdamConstants(step), moments, kQuads, wrong.data());
    Synchronize();
    return wrong.Download()[0];
  }
};

AdamStep StepAt(int64_t step_count) {
  AdamStep step;
  step.weight_decay = 0.1f;
  step.bias_correction1 = BiasCorrection(step.beta1, step_count);
  step.bias_correction2 = BiasCorrection(step.beta2, step_count);
  step.gradient_scale = 0.37f;
  return step;
}

// Steps whose quotients nothing hides, for masters of zero.
AdamStep BareStep(float epsilon) {
  AdamStep step = StepAt(3);
  step.learning_rate = 1.0f;
  step.weight_decay = 0.0f;
  step.epsilon = epsilon;
  return step;
}

std::vector<AdamStep> Steps() {
  std::vector<AdamStep> steps = {StepAt(1), StepAt(2), StepAt(7), StepAt(1000), StepAt(1000000)};
  for (float epsilon : {1e-8f, 1e-6f, 1e-15f, 0x1p-60f, 0.7f, 1.0f, 1e5f, 0x1p20f, 0.0f, 1e-30f, 1e20f}) {
    steps.push_back(BareStep(epsilon));
  }
  steps.push_back(StepAt(7));
  steps.back().mode = AdamMode::kL2;
  steps.push_back(StepAt(7));
  steps.back().bias_correction1 = steps.back().bias_correction2 = 0x1.fffffep-25f;
  steps.push_back(StepAt(7));
  steps.back().bias_correction1 = steps.back().bias_correction2 = 0x1p-24f;
  steps.push_back(StepAt(7));
  steps.back().bias_correction1 = 0x1.fffffep-1f;
  steps.back().bias_correction2 = 0x1.000002p-1f;
  return steps;
}

void ExpectNoneWrong(const std::vector<uint64_t>& wrong) {
  for (size_t i = 0; i < wrong.size(); ++i) EXPECT_EQ(wrong[i], 0u) << "step " << i;
}

TEST_F(AdamMathCudaTest, AnyBitsGiveTheFormula) {
  std::vector<uint64_t> wrong;
  for (const AdamStep& step : Steps()) wrong.push_back(WrongUpdates(step, Moments::kAnyBits));
  ExpectNoneWrong(wrong);
}

TEST_F(AdamMathCudaTest, OrdinaryMomentsGiveTheFormula) {
  std::vector<uint64_t> wrong;
  for (const AdamStep& step : Steps()) wrong.push_back(WrongUpdates(step, Moments::kOrdinary));
  ExpectNoneWrong(wrong);
}

TEST_F(AdamMathCudaTest, SmallMomentsGiveTheFormula) {
  std::vector<uint64_t> wrong;
  for (const AdamStep& step : Steps()) wrong.push_back(WrongUpdates(step, Moments::kSmall));
  ExpectNoneWrong(wrong);
}

TEST_F(AdamMathCudaTest, TinyMomentsGiveTheFormula) {
  std::vector<uint64_t> wrong;
  for (const AdamStep& step : Steps()) wrong.push_back(WrongUpdates(step, Moments::kTiny));
  ExpectNoneWrong(wrong);
}

TEST_F(AdamMathCudaTest, CastsOfEveryFloatAreTheFormulas) {
  const DeviceArray<unsigned long long> wrong(std::vector<unsigned long long>(3, 0));
  CountWrongCasts<<<kBlocks, kThreads, 0, stream()>>>(wrong.data());
  Synchronize();
  EXPECT_EQ(wrong.Download(), std::vector<unsigned long long>(3, 0));
}

}  // namespace
}  // namespace paramshard::gpu
