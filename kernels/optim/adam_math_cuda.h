// UpdateAdamElement() (adam_math.h) for several elements at a time, without the branches of IEEE division and square
// root.
//
// Internal to kernels/, for CUDA sources.
//
// Plainly compiled, the two divisions and the root each test their operands and call a subroutine for zeros, subnormals
// and the ends of the range. Moments that are zero or subnormal (rows without a gradient keep them) make the step twice
// as slow or worse. Here one test for all elements picks one of three ways, which give the same bytes:
//
//  1. Moments of ordinary size: the same sequence of instructions that the compiler puts behind its tests. An
//     approximate reciprocal, one Newton step, the quotient, and two corrections by its remainder, which a fused
//     multiply-add gives exactly; for the root one such correction. For the divisions by bias corrections the host
//     provides reciprocals that give the quotient in two instructions (reciprocal_pair.h).
//  2. Small moments, down to zero. A product in double divides by the bias corrections: with c <= 1 the quotient of two
//     float32 is never a tie and is at least 2^-48 of itself away from one, and the product is off by 2^-52. Root and
//     quotient have operands scaled by a power of two. Scaling a quotient back to a subnormal rounds a second time,
//     which is corrected where it matters.
//  3. All other moments, including infinities and NaN: the formula, element by element.

#ifndef PARAMSHARD_KERNELS_OPTIM_ADAM_MATH_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_ADAM_MATH_CUDA_H_

#include <cstdint>

#include "kernels/base/float_bits.h"
#include "kernels/optim/adam_math.h"
#include "kernels/optim/reciprocal_pair.h"

namespace paramshard::gpu {

// An OptimizerStep with the constants that a kernel derives from it.
struct StepConstants {
  OptimizerStep step;
  float one_minus_beta1;
  float one_minus_beta2;
  // Reciprocals of the bias corrections.
  ReciprocalPair reciprocal1;
  ReciprocalPair reciprocal2;
  double wide_reciprocal1;
  double wide_reciprocal2;
  bool in_range;         // the second way is exact; false: only the third is
  bool allows_ordinary;  // the first way is exact too; implies in_range
};

// Bounds for which the first two ways are proven. Within them no intermediate result overflows, and every remainder is
// a float32: its smallest nonzero bit is 2^-48 of the dividend, and not below 2^-149.
constexpr float kMinBiasCorrection = 0x1p-24f;
constexpr float kMinEpsilon = 0x1p-60f;
constexpr float kMaxEpsilon = 0x1p20f;

// Biased exponents of the moments that the first way takes: |exp_avg| in [2^-64, 2^40), exp_avg_sq in [2^-96, 2^64).
constexpr uint32_t kMinExpAvgExponent = 127 - 64;
constexpr uint32_t kEndExpAvgExponent = 127 + 40;
constexpr uint32_t kMinExpAvgSqExponent = 127 - 96;
constexpr uint32_t kEndExpAvgSqExponent = 127 + 64;
// The second way: |exp_avg| < 2^40, exp_avg_sq in [0, 2^20).
constexpr uint32_t kEndSmallExpAvgSqExponent = 127 + 20;

inline StepConstants MakeStepConstants(const OptimizerStep& step) {
  StepConstants constants = {};
  constants.step = step;
  constants.one_minus_beta1 = 1.0f - step.beta1;
  constants.one_minus_beta2 = 1.0f - step.beta2;
  constants.wide_reciprocal1 = 1.0 / static_cast<double>(step.bias_correction1);
  constants.wide_reciprocal2 = 1.0 / static_cast<double>(step.bias_correction2);
  constants.in_range = step.bias_correction1 >= kMinBiasCorrection && step.bias_correction1 <= 1.0f &&
                       step.bias_correction2 >= kMinBiasCorrection && step.bias_correction2 <= 1.0f &&
                       step.epsilon >= kMinEpsilon && step.epsilon <= kMaxEpsilon;
  constants.allows_ordinary = constants.in_range && FindReciprocalPair(step.bias_correction1, constants.reciprocal1) &&
                              FindReciprocalPair(step.bias_correction2, constants.reciprocal2);
  return constants;
}

#if defined(__CUDACC__)

__device__ __forceinline__ float ApproximateReciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ __forceinline__ float ApproximateReciprocalRoot(float x) {
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// One step from an approximate quotient to dividend / divisor. A zero keeps its sign.
__device__ __forceinline__ float CorrectQuotient(float dividend, float divisor, float reciprocal, float quotient) {
  return fmaf(fmaf(divisor, quotient, -dividend), -reciprocal, quotient);
}

// dividend / divisor, where `reciprocal` is 1 / divisor with at most its last bit wrong.
__device__ __forceinline__ float Divide(float dividend, float divisor, float reciprocal) {
  float quotient = dividend * reciprocal;
  quotient = CorrectQuotient(dividend, divisor, reciprocal, quotient);
  return CorrectQuotient(dividend, divisor, reciprocal, quotient);
}

__device__ __forceinline__ float Divide(float dividend, float divisor) {
  const float approximate = ApproximateReciprocal(divisor);
  return Divide(dividend, divisor, fmaf(fmaf(-divisor, approximate, 1.0f), approximate, approximate));
}

// dividend / divisor, given the precomputed reciprocal of the divisor.
__device__ __forceinline__ float Divide(float dividend, const ReciprocalPair& reciprocal) {
  return fmaf(dividend, reciprocal.high, dividend * reciprocal.low);
}

// Returns sqrtf(x), given an approximate reciprocal root of x.
__device__ __forceinline__ float Root(float x, float reciprocal_root) {
  const float root = x * reciprocal_root;
  return fmaf(fmaf(-root, root, x), reciprocal_root * 0.5f, root);
}

// The first way: (exp_avg / bias_correction1) / (sqrtf(exp_avg_sq / bias_correction2) + epsilon).
__device__ __forceinline__ float OrdinaryQuotient(const StepConstants& constants, float exp_avg, float exp_avg_sq) {
  const float mean = Divide(exp_avg, constants.reciprocal1);
  const float square = Divide(exp_avg_sq, constants.reciprocal2);
  return Divide(mean, Root(square, ApproximateReciprocalRoot(square)) + constants.step.epsilon);
}

constexpr float kUp = 0x1p64f;
constexpr float kDown = 0x1p-64f;

// sqrtf(x) for x in [0, 2^64).
__device__ __forceinline__ float SmallRoot(float x) {
  const bool tiny = x < 0x1p-90f;
  const float scaled = tiny ? x * kUp : x;
  // Finite also for zero, whose root is then zero.
  const float reciprocal_root = fminf(ApproximateReciprocalRoot(scaled), 0x1p80f);
  const float root = Root(scaled, reciprocal_root);
  return tiny ? root * 0x1p-32f : root;
}

// `quotient` is dividend / divisor rounded to nearest, and about to be multiplied by kDown to a subnormal, which rounds
// again. This is wrong if the first rounding ended halfway between two subnormals: then returns the neighbor of
// `quotient` on the side of the exact value.
__device__ __forceinline__ float LeaveFalseTie(float dividend, float divisor, float quotient) {
  const float subnormal = quotient * kDown;
  // Half of the smallest subnormal, scaled up.
  const bool tie = fabsf(quotient - subnormal * kUp) == 0x1p-86f;
  const float excess = fmaf(divisor, quotient, -dividend);
  if (!tie || excess == 0.0f) return quotient;
  const bool too_large = ((FloatBits(excess) ^ FloatBits(quotient)) & kFloatSignBit) == 0;
  return FloatFromBits(too_large ? FloatBits(quotient) - 1 : FloatBits(quotient) + 1);
}

// The second way.
__device__ __forceinline__ float SmallQuotient(const StepConstants& constants, float exp_avg, float exp_avg_sq) {
  const float mean = static_cast<float>(static_cast<double>(exp_avg) * constants.wide_reciprocal1);
  const float square = static_cast<float>(static_cast<double>(exp_avg_sq) * constants.wide_reciprocal2);
  const float divisor = SmallRoot(square) + constants.step.epsilon;
  const bool tiny_mean = fabsf(mean) < 0x1p-30f;
  const float dividend = tiny_mean ? mean * kUp : mean;
  const float quotient = Divide(dividend, divisor);
  const bool subnormal = tiny_mean && fabsf(quotient) < 0x1p-126f * kUp;
  const float rounded = subnormal ? LeaveFalseTie(dividend, divisor, quotient) : quotient;
  return tiny_mean ? rounded * kDown : rounded;
}

// Words that grow with an element's moments: the largest of them tells whether all moments are in a range.
//
// In the first two, the smallest ordinary moment is zero, and what is below wraps around to large numbers. The sign of
// exp_avg_sq counts as very large.
__device__ __forceinline__ uint32_t ExpAvgFromOrdinary(float exp_avg) {
  return (FloatBits(exp_avg) << 1) - (kMinExpAvgExponent << 24);
}
__device__ __forceinline__ uint32_t ExpAvgSqFromOrdinary(float exp_avg_sq) {
  return FloatBits(exp_avg_sq) - (kMinExpAvgSqExponent << 23);
}

template <int kCount>
__device__ __forceinline__ bool AreOrdinary(const AdamElement (&elements)[kCount]) {
  uint32_t exp_avg = 0;
  uint32_t exp_avg_sq = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    exp_avg = max(exp_avg, ExpAvgFromOrdinary(elements[i].exp_avg));
    exp_avg_sq = max(exp_avg_sq, ExpAvgSqFromOrdinary(elements[i].exp_avg_sq));
  }
  return exp_avg < (kEndExpAvgExponent - kMinExpAvgExponent) << 24 &&
         exp_avg_sq < (kEndExpAvgSqExponent - kMinExpAvgSqExponent) << 23;
}

template <int kCount>
__device__ __forceinline__ bool AreSmall(const AdamElement (&elements)[kCount]) {
  uint32_t exp_avg = 0;
  uint32_t exp_avg_sq = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    exp_avg = max(exp_avg, FloatBits(elements[i].exp_avg) << 1);
    exp_avg_sq = max(exp_avg_sq, FloatBits(elements[i].exp_avg_sq));
  }
  return exp_avg < kEndExpAvgExponent << 24 && exp_avg_sq < kEndSmallExpAvgSqExponent << 23;
}

// The third way.
__device__ __forceinline__ AdamElement UpdateByFormula(const OptimizerStep& step, float gradient, AdamElement old) {
  const AdamElement fresh = DecayOf(step.optimizer) == WeightDecay::kOfGradient
                                ? UpdateAdamElement<WeightDecay::kOfGradient>(step, gradient, old)
                                : UpdateAdamElement<WeightDecay::kOfParameter>(step, gradient, old);
  return {CanonicalNan(fresh.master), CanonicalNan(fresh.exp_avg), CanonicalNan(fresh.exp_avg_sq)};
}

// The elements after the step: the bits of UpdateAdamElement(), every NaN as 0x7fc00000.
template <int kCount>
__device__ __forceinline__ void UpdateAdamElements(const StepConstants& constants, const float (&gradients)[kCount],
                                                   AdamElement (&elements)[kCount]) {
  const OptimizerStep& step = constants.step;
  const bool decays_gradient = DecayOf(step.optimizer) == WeightDecay::kOfGradient;
  AdamElement fresh[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float g = gradients[i] * step.gradient_scale;
    if (decays_gradient) g = g + step.weight_decay * elements[i].master;
    fresh[i].exp_avg = step.beta1 * elements[i].exp_avg + constants.one_minus_beta1 * g;
    fresh[i].exp_avg_sq = step.beta2 * elements[i].exp_avg_sq + (constants.one_minus_beta2 * g) * g;
  }
  float quotients[kCount];
  if (constants.allows_ordinary && AreOrdinary(fresh)) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) quotients[i] = OrdinaryQuotient(constants, fresh[i].exp_avg, fresh[i].exp_avg_sq);
  } else if (constants.in_range && AreSmall(fresh)) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) quotients[i] = SmallQuotient(constants, fresh[i].exp_avg, fresh[i].exp_avg_sq);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) elements[i] = UpdateByFormula(step, gradients[i], elements[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float change = decays_gradient ? quotients[i] : quotients[i] + step.weight_decay * elements[i].master;
    fresh[i].master = CanonicalNan(elements[i].master - step.learning_rate * change);
    elements[i] = fresh[i];
  }
}

// Adam as ElementsWith<> (elements_cuda.h): kCount elements side by side, a row for each moment.
struct AdamElements {
  static constexpr int kMomentCount = AdamW::kMomentCount;

  template <int kRows, int kCount>
  static __device__ __forceinline__ void Update(const StepConstants& constants, const float (&gradients)[kCount],
                                                float (&masters)[kCount], float (&moments)[kRows][kCount]) {
    AdamElement elements[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      elements[i] = {masters[i], moments[AdamW::kExpAvg][i], moments[AdamW::kExpAvgSq][i]};
    }
    UpdateAdamElements(constants, gradients, elements);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      masters[i] = elements[i].master;
      moments[AdamW::kExpAvg][i] = elements[i].exp_avg;
      moments[AdamW::kExpAvgSq][i] = elements[i].exp_avg_sq;
    }
  }
};

#endif  // defined(__CUDACC__)

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_ADAM_MATH_CUDA_H_
