#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cmath>

#include "lab/bench/plain_adamw.h"

namespace paramshard {
namespace {

constexpr int kThreads = 256;
constexpr float kBeta1 = 0.9f, kBeta2 = 0.999f, kEpsilon = 1e-8f, kDecay = 0.01f;

unsigned int BlocksFor(int64_t count) { return static_cast<unsigned int>((count / 4 + kThreads - 1) / kThreads); }

__device__ int64_t Quad() { return (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4; }

__device__ float4 LoadGradient(const uint16_t* gradient) {
  const ushort4 bits = *reinterpret_cast<const ushort4*>(gradient);
  const auto value = [](unsigned short b) { return __uint_as_float(static_cast<unsigned int>(b) << 16); };
  return {value(bits.x), value(bits.y), value(bits.z), value(bits.w)};
}

__global__ __launch_bounds__(kThreads) void AddSquaresKernel(const PlainAdamW step) {
  double sum = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads * 4;
  for (int64_t i = Quad(); i < step.count; i += stride) {
    const float4 g = LoadGradient(step.gradient + i);
    sum += g.x * g.x + g.y * g.y + g.z * g.z + g.w * g.w;
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(step.square_sum, sum);
}

__device__ float Update(float g, float& p, float& m, float& v, const PlainAdamW& step, float c1, float c2) {
  m = kBeta1 * m + (1 - kBeta1) * g;
  v = kBeta2 * v + (1 - kBeta2) * g * g;
  p -= step.learning_rate * kDecay * p;
  p -= step.learning_rate * (m / c1) / (sqrtf(v) / sqrtf(c2) + kEpsilon);
  return p;
}

__global__ __launch_bounds__(kThreads) void AdamWKernel(const PlainAdamW step, float c1, float c2) {
  const int64_t i = Quad();
  if (i >= step.count) return;
  const float clip = fminf(1.0f, step.max_grad_norm / (static_cast<float>(sqrt(*step.square_sum)) + 1e-6f));
  float4 g = LoadGradient(step.gradient + i);
  float4 p = *reinterpret_cast<float4*>(step.parameter + i);
  float4 m = *reinterpret_cast<float4*>(step.exp_avg + i);
  float4 v = *reinterpret_cast<float4*>(step.exp_avg_sq + i);
  Update(g.x * clip, p.x, m.x, v.x, step, c1, c2);
  Update(g.y * clip, p.y, m.y, v.y, step, c1, c2);
  Update(g.z * clip, p.z, m.z, v.z, step, c1, c2);
  Update(g.w * clip, p.w, m.w, v.w, step, c1, c2);
  *reinterpret_cast<float4*>(step.parameter + i) = p;
  *reinterpret_cast<float4*>(step.exp_avg + i) = m;
  *reinterpret_cast<float4*>(step.exp_avg_sq + i) = v;
  if (step.eight_bit_weight) {
    *reinterpret_cast<__nv_fp8x4_e4m3*>(static_cast<uint8_t*>(step.weight) + i) = __nv_fp8x4_e4m3(p);
  } else {
    auto* const weight = reinterpret_cast<__nv_bfloat162*>(static_cast<uint16_t*>(step.weight) + i);
    weight[0] = __floats2bfloat162_rn(p.x, p.y);
    weight[1] = __floats2bfloat162_rn(p.z, p.w);
  }
}

}  // namespace

void AddSquares(const PlainAdamW& step, cudaStream_t stream) {
  AddSquaresKernel<<<132 * 8, kThreads, 0, stream>>>(step);
}

void StepAdamW(const PlainAdamW& step, cudaStream_t stream) {
  const auto correction = [&](float beta) { return 1 - std::pow(beta, static_cast<float>(step.step)); };
  AdamWKernel<<<BlocksFor(step.count), kThreads, 0, stream>>>(step, correction(kBeta1), correction(kBeta2));
}

}  // namespace paramshard
