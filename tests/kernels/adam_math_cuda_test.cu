// The GPU's shortcuts against the formulas that they stand for: billions of elements, counted on the GPU.

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/float16.h"
#include "kernels/formats/float4.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/packed_casts_cuda.h"
#include "kernels/formats/scale_math.h"
#include "kernels/optim/adam_math_cuda.h"
#include "kernels/optim/fused_step.h"
#include "kernels/optim/moment_rows_cuda.h"
#include "kernels/random/philox.h"
#include "tests/kernels/gpu_test.h"

namespace paramshard::gpu {
namespace {

constexpr int kBlocks = 132 * 8;

// Distribution of random moments.
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

__global__ void CountWrongUpdates(StepConstants constants, Moments moments, uint64_t quads, unsigned long long* wrong) {
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

// All casts of a float32.
struct Casts {
  uint8_t e4m3;
  uint8_t e5m2;
  uint8_t e2m1;
  uint8_t e8m0;
  uint16_t bfloat16;
  uint16_t float16;
  uint16_t float16_saturating;
};

// Casts the 2^kChunkBits float32 whose bits begin with `chunk`. A thread casts two neighbors, with the GPU's
// instructions where the kernels use them.
constexpr int kChunkBits = 24;

__global__ void CastChunk(uint32_t chunk, Casts* casts) {
  const uint32_t pair = blockIdx.x * kThreads + threadIdx.x;
  const float a = FloatFromBits((chunk << kChunkBits) + pair * 2);
  const float b = FloatFromBits((chunk << kChunkBits) + pair * 2 + 1);
  const uint32_t e4m3 = EncodeFloat8Quad<E4M3>(a, b, b, a);
  const uint32_t e5m2 = EncodeFloat8Quad<E5M2>(a, b, b, a);
  const uint32_t bfloat16 = EncodeBFloat16Pair(a, b);
  const uint32_t float16 = EncodeFloat16Pair(a, b);
  const uint32_t saturating = EncodeFloat16PairSaturating(a, b);
  for (int i = 0; i < 2; ++i) {
    const float value = i == 0 ? a : b;
    casts[pair * 2 + i] = {static_cast<uint8_t>(e4m3 >> (8 * i)),
                           static_cast<uint8_t>(e5m2 >> (8 * i)),
                           E2M1::Encode(value),
                           EncodeE8M0RoundUp(value),
                           static_cast<uint16_t>(bfloat16 >> (16 * i)),
                           static_cast<uint16_t>(float16 >> (16 * i)),
                           static_cast<uint16_t>(saturating >> (16 * i))};
  }
}

// How many casts of a chunk differ from the host's.
int64_t CountDifferences(uint32_t chunk, const Casts* casts, int64_t first, int64_t last) {
  int64_t differences = 0;
  for (int64_t i = first; i < last; ++i) {
    const float value = FloatFromBits((chunk << kChunkBits) + static_cast<uint32_t>(i));
    const Casts& cast = casts[i];
    differences += cast.e4m3 != E4M3::Encode(value);
    differences += cast.e5m2 != E5M2::Encode(value);
    differences += cast.e2m1 != E2M1::Encode(value);
    differences += cast.e8m0 != EncodeE8M0RoundUp(value);
    differences += cast.bfloat16 != EncodeBFloat16(value);
    differences += cast.float16 != EncodeFloat16(value);
    differences += cast.float16_saturating != EncodeFloat16Saturating(value);
  }
  return differences;
}

// Fills a lane's part of a random block: values of few bits, which make ties; values near the amax; values about
// halfway between two codes; zeros; and rarely any bits.
template <typename Moment, bool kRoot>
__device__ void RandomBlock(uint64_t block, float (&values)[4]) {
  const PhiloxCounter counter = {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 3, 0}};
  const PhiloxBlock of_block = Philox4x32(counter, {{20, 0}});
  const float amax = fabsf(RandomFloat(of_block.word[0], of_block.word[1], 0, 255));
  const float scale_inv = MomentScaleInv(amax, Moment::kMax);
  const bool has_any_bits = of_block.word[2] % 64 == 0;
  const uint32_t lane = threadIdx.x % 32;
  const PhiloxBlock a = Philox4x32(counter, {{21, lane}});
  const PhiloxBlock b = Philox4x32(counter, {{22, lane}});
  for (int i = 0; i < 4; ++i) {
    const uint32_t choice = b.word[1] >> (8 * i);
    float value = 0.0f;
    switch (choice % 8) {
      case 0:
      case 1:
        value = RandomFloat(a.word[i] & (0xffffffffu << b.word[0] % 24), b.word[2] >> (8 * i), 0, 255);
        break;
      case 2:
      case 3:
        value = ldexpf(amax, -static_cast<int>(b.word[3] >> (8 * i) & 31)) * (1.0f + (a.word[i] & 0xff) / 256.0f);
        break;
      case 4:
      case 5:
      case 6: {
        // Codes of positive finite numbers are in order.
        constexpr uint32_t kCodes = sizeof(typename Moment::Stored) == 1 ? 0x7e : 0x7bff;
        const auto code = static_cast<typename Moment::Stored>((a.word[i] >> 8) % kCodes);
        const float middle =
            0.5f * (Moment::Decode(code) + Moment::Decode(static_cast<typename Moment::Stored>(code + 1)));
        const float near = middle * scale_inv;
        value = FloatFromBits(FloatBits(near) + (near != 0.0f ? a.word[i] % 9 - 4 : 0));
        break;
      }
      default:
        if (has_any_bits) value = FloatFromBits(a.word[i]);
    }
    if (!has_any_bits && !(fabsf(value) <= amax)) value = -amax;
    values[i] = kRoot && !has_any_bits ? value * value : value;
  }
}

// The codes and scales of blocks with the GPU's shortcuts, against the formula. A warp has a block. Scales of every
// exponent.
template <typename Moment, KernelMoments kType, bool kRoot>
__global__ void CountWrongBlocks(uint64_t blocks, unsigned long long* wrong) {
  const uint64_t step = uint64_t{gridDim.x} * kThreads / 32;
  for (uint64_t block = (uint64_t{blockIdx.x} * kThreads + threadIdx.x) / 32; block < blocks; block += step) {
    float values[4];
    RandomBlock<Moment, kRoot>(block, values);
    float amax = 0.0f;
    for (int i = 0; i < 4; ++i) amax = fmaxf(amax, fabsf(MomentToStore<kRoot>(values[i])));
    for (int distance = 1; distance < 32; distance *= 2) amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, distance));
    EncodedBlock<MomentCasts<kType>> encoded;
    if (!EstimateBlock<MomentCasts<kType>, kRoot>(values, encoded)) {
      CorrectBlock<MomentCasts<kType>, kRoot>(values, encoded);
    }
    const float expected = MomentScaleInv(amax, Moment::kMax);
    if (!SameBits(encoded.scale_inv, expected)) atomicAdd(wrong, 1ull);
    for (int i = 0; i < 4; ++i) {
      const auto code = EncodeBlockMoment<Moment>(MomentToStore<kRoot>(values[i]), expected);
      if (encoded.codes.Get(i) != code) atomicAdd(wrong, 1ull);
    }
  }
}

// Roots of float32 of all bits.
__global__ void CountWrongRoots(unsigned long long* wrong) {
  const uint64_t stride = uint64_t{gridDim.x} * kThreads;
  for (uint64_t quad = uint64_t{blockIdx.x} * kThreads + threadIdx.x; quad < (1ull << 30); quad += stride) {
    float values[4];
    for (int i = 0; i < 4; ++i) values[i] = FloatFromBits(static_cast<uint32_t>(quad * 4 + i));
    float roots[4] = {values[0], values[1], values[2], values[3]};
    TakeRoots(roots);
    for (int i = 0; i < 4; ++i) {
      if (!SameBits(CanonicalNan(roots[i]), CanonicalNan(sqrtf(values[i])))) atomicAdd(wrong, 1ull);
    }
  }
}

__device__ float DecodedHalf(uint32_t code) {
  float first;
  float second;
  DecodeFloat16Pair(code & 0xffffu, first, second);
  return first;
}

// The values of all codes.
__global__ void CountWrongDecodings(unsigned long long* wrong) {
  const uint32_t code = blockIdx.x * kThreads + threadIdx.x;
  const float half = DecodedHalf(code);
  if (!SameBits(CanonicalNan(half), CanonicalNan(DecodeFloat16(static_cast<uint16_t>(code))))) atomicAdd(wrong, 1ull);
  float values[4];
  DecodeE4M3Quad(code | code << 16, values);
  for (int i = 0; i < 4; ++i) {
    const float expected = E4M3::Decode(static_cast<uint8_t>(code >> (i % 2 * 8)));
    if (!SameBits(CanonicalNan(values[i]), CanonicalNan(expected))) atomicAdd(wrong, 1ull);
  }
}

class AdamMathCudaTest : public GpuTest {
 protected:
  uint64_t WrongUpdates(const OptimizerStep& step, Moments moments) {
    constexpr uint64_t kQuads = 1ull << 24;
    const DeviceArray<unsigned long long> wrong(std::vector<unsigned long long>{0});
    CountWrongUpdates<<<kBlocks, kThreads, 0, stream()>>>(MakeStepConstants(step), moments, kQuads, wrong.data());
    Synchronize();
    return wrong.Download()[0];
  }
};

OptimizerStep StepAt(int64_t step_count) {
  OptimizerStep step;
  step.weight_decay = 0.1f;
  step.bias_correction1 = BiasCorrection(step.beta1, step_count);
  step.bias_correction2 = BiasCorrection(step.beta2, step_count);
  step.gradient_scale = 0.37f;
  return step;
}

// Steps whose quotients nothing hides, for masters of zero.
OptimizerStep BareStep(float epsilon) {
  OptimizerStep step = StepAt(3);
  step.learning_rate = 1.0f;
  step.weight_decay = 0.0f;
  step.epsilon = epsilon;
  return step;
}

std::vector<OptimizerStep> Steps() {
  std::vector<OptimizerStep> steps = {StepAt(1), StepAt(2), StepAt(7), StepAt(1000), StepAt(1000000)};
  // Bias corrections of many steps: each has a reciprocal of its own.
  for (int64_t step_count = 3; step_count < 40; ++step_count) steps.push_back(StepAt(step_count * step_count));
  for (float epsilon : {1e-8f, 1e-6f, 1e-15f, 0x1p-60f, 0.7f, 1.0f, 1e5f, 0x1p20f, 0.0f, 1e-30f, 1e20f}) {
    steps.push_back(BareStep(epsilon));
  }
  steps.push_back(StepAt(7));
  steps.back().optimizer = Optimizer::kAdam;
  steps.push_back(StepAt(7));
  steps.back().bias_correction1 = steps.back().bias_correction2 = 0x1.fffffep-25f;
  steps.push_back(StepAt(7));
  steps.back().bias_correction1 = steps.back().bias_correction2 = 0x1p-24f;
  steps.push_back(StepAt(7));
  steps.back().bias_correction1 = 0x1.fffffep-1f;
  steps.back().bias_correction2 = 0x1.000002p-1f;
  // One that has no reciprocal in two parts.
  steps.push_back(StepAt(286));
  return steps;
}

void ExpectNoneWrong(const std::vector<uint64_t>& wrong) {
  for (size_t i = 0; i < wrong.size(); ++i) EXPECT_EQ(wrong[i], 0u) << "step " << i;
}

TEST_F(AdamMathCudaTest, AnyBitsGiveTheFormula) {
  std::vector<uint64_t> wrong;
  for (const OptimizerStep& step : Steps()) wrong.push_back(WrongUpdates(step, Moments::kAnyBits));
  ExpectNoneWrong(wrong);
}

TEST_F(AdamMathCudaTest, OrdinaryMomentsGiveTheFormula) {
  std::vector<uint64_t> wrong;
  for (const OptimizerStep& step : Steps()) wrong.push_back(WrongUpdates(step, Moments::kOrdinary));
  ExpectNoneWrong(wrong);
}

TEST_F(AdamMathCudaTest, SmallMomentsGiveTheFormula) {
  std::vector<uint64_t> wrong;
  for (const OptimizerStep& step : Steps()) wrong.push_back(WrongUpdates(step, Moments::kSmall));
  ExpectNoneWrong(wrong);
}

TEST_F(AdamMathCudaTest, TinyMomentsGiveTheFormula) {
  std::vector<uint64_t> wrong;
  for (const OptimizerStep& step : Steps()) wrong.push_back(WrongUpdates(step, Moments::kTiny));
  ExpectNoneWrong(wrong);
}

TEST_F(AdamMathCudaTest, CastsOfEveryFloatAreTheHosts) {
  constexpr int64_t kChunk = int64_t{1} << kChunkBits;
  Casts* device_casts = nullptr;
  Casts* casts = nullptr;
  ASSERT_EQ(cudaMalloc(&device_casts, kChunk * sizeof(Casts)), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&casts, kChunk * sizeof(Casts)), cudaSuccess);
  const int64_t thread_count = std::max(1u, std::thread::hardware_concurrency());
  for (uint32_t chunk = 0; chunk < (1u << (32 - kChunkBits)); ++chunk) {
    CastChunk<<<kChunk / 2 / kThreads, kThreads, 0, stream()>>>(chunk, device_casts);
    ASSERT_EQ(cudaMemcpyAsync(casts, device_casts, kChunk * sizeof(Casts), cudaMemcpyDeviceToHost, stream()),
              cudaSuccess);
    Synchronize();
    std::vector<int64_t> differences(thread_count);
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < thread_count; ++t) {
      threads.emplace_back([&, t] {
        differences[t] = CountDifferences(chunk, casts, kChunk * t / thread_count, kChunk * (t + 1) / thread_count);
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(differences, std::vector<int64_t>(thread_count, 0)) << "chunk " << chunk;
  }
  EXPECT_EQ(cudaFree(device_casts), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(casts), cudaSuccess);
}

TEST_F(AdamMathCudaTest, BlocksOfMomentsAreCastByTheFormula) {
  constexpr uint64_t kBlocksOfMoments = 1ull << 22;
  const DeviceArray<unsigned long long> wrong(std::vector<unsigned long long>(6, 0));
  CountWrongBlocks<Float8Moment, KernelMoments::kFP8, false>
      <<<kBlocks, kThreads, 0, stream()>>>(kBlocksOfMoments, wrong.data());
  CountWrongBlocks<Float8Moment, KernelMoments::kFP8, true>
      <<<kBlocks, kThreads, 0, stream()>>>(kBlocksOfMoments, wrong.data() + 1);
  CountWrongBlocks<Float16Moment, KernelMoments::kFP16, false>
      <<<kBlocks, kThreads, 0, stream()>>>(kBlocksOfMoments, wrong.data() + 2);
  CountWrongBlocks<Float16Moment, KernelMoments::kFP16, true>
      <<<kBlocks, kThreads, 0, stream()>>>(kBlocksOfMoments, wrong.data() + 3);
  CountWrongRoots<<<kBlocks, kThreads, 0, stream()>>>(wrong.data() + 4);
  CountWrongDecodings<<<65536 / kThreads, kThreads, 0, stream()>>>(wrong.data() + 5);
  Synchronize();
  EXPECT_EQ(wrong.Download(), std::vector<unsigned long long>(6, 0));
}

}  // namespace
}  // namespace paramshard::gpu
