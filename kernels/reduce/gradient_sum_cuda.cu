#include "kernels/reduce/gradient_sum_cuda.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/float_bits.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/gpu/status.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kQuadsPerThread = 4;
constexpr int64_t kBlockElements = int64_t{kThreads} * kQuadsPerThread * 4;
constexpr int kTasksPerLaunch = 64;

// The tasks of one launch, and which blocks are whose. It travels as the kernel's parameter.
struct TaskList {
  GradientSumTask tasks[kTasksPerLaunch];
  int64_t first_block[kTasksPerLaunch + 1];
  int count;
};

// Four gradients as float32.
struct FloatGradient {
  using Stored = float;
  __device__ static float Load(const Stored* source) { return *source; }
  __device__ static float4 LoadQuad(const Stored* source) { return *reinterpret_cast<const float4*>(source); }
};

struct BFloat16Gradient {
  using Stored = uint16_t;
  __device__ static float Load(const Stored* source) { return DecodeBFloat16(*source); }
  __device__ static float4 LoadQuad(const Stored* source) {
    const ushort4 codes = *reinterpret_cast<const ushort4*>(source);
    return {DecodeBFloat16(codes.x), DecodeBFloat16(codes.y), DecodeBFloat16(codes.z), DecodeBFloat16(codes.w)};
  }
};

__device__ float4 Add(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

__device__ float4 CanonicalNans(float4 a) {
  return {CanonicalNan(a.x), CanonicalNan(a.y), CanonicalNan(a.z), CanonicalNan(a.w)};
}

// The loads of all quads and of a few sources are on their way before the first is added.
template <typename Gradient>
__device__ void SumQuads(const GradientSumTask& task, int64_t first) {
  using Stored = typename Gradient::Stored;
  float4 sums[kQuadsPerThread];
#pragma unroll
  for (int q = 0; q < kQuadsPerThread; ++q) {
    sums[q] = Gradient::LoadQuad(static_cast<const Stored*>(task.sources[0]) + first + q * kThreads * 4);
  }
#pragma unroll 3
  for (int s = 1; s < task.source_count; ++s) {
    const Stored* const source = static_cast<const Stored*>(task.sources[s]) + first;
#pragma unroll
    for (int q = 0; q < kQuadsPerThread; ++q) sums[q] = Add(sums[q], Gradient::LoadQuad(source + q * kThreads * 4));
  }
  float4* const accumulator = reinterpret_cast<float4*>(task.accumulator + first);
#pragma unroll
  for (int q = 0; q < kQuadsPerThread; ++q) {
    if (!task.overwrite) sums[q] = Add(accumulator[q * kThreads], sums[q]);
    accumulator[q * kThreads] = CanonicalNans(sums[q]);
  }
}

template <typename Gradient>
__device__ void SumOne(const GradientSumTask& task, int64_t i) {
  using Stored = typename Gradient::Stored;
  float sum = Gradient::Load(static_cast<const Stored*>(task.sources[0]) + i);
  for (int s = 1; s < task.source_count; ++s) {
    sum = sum + Gradient::Load(static_cast<const Stored*>(task.sources[s]) + i);
  }
  if (!task.overwrite) sum = task.accumulator[i] + sum;
  task.accumulator[i] = CanonicalNan(sum);
}

// Whether four elements of every array can be accessed at once.
__device__ bool HasQuads(const GradientSumTask& task) {
  const uintptr_t source_quad = task.type == GradientType::kFP32 ? 16 : 8;
  uintptr_t misaligned = reinterpret_cast<uintptr_t>(task.accumulator) % 16;
  for (int s = 0; s < task.source_count; ++s) {
    misaligned |= reinterpret_cast<uintptr_t>(task.sources[s]) % source_quad;
  }
  return misaligned == 0;
}

template <typename Gradient>
__device__ void SumBlock(const GradientSumTask& task, int64_t first) {
  if (first + kBlockElements <= task.count && HasQuads(task)) {
    SumQuads<Gradient>(task, first + threadIdx.x * 4);
    return;
  }
  const int64_t end = first + kBlockElements < task.count ? first + kBlockElements : task.count;
#pragma unroll 4
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) SumOne<Gradient>(task, i);
}

__global__ __launch_bounds__(kThreads) void SumGradientsKernel(const __grid_constant__ TaskList list) {
  int task = 0;
  while (list.first_block[task + 1] <= blockIdx.x) ++task;
  const int64_t first = (blockIdx.x - list.first_block[task]) * kBlockElements;
  if (list.tasks[task].type == GradientType::kFP32) {
    SumBlock<FloatGradient>(list.tasks[task], first);
  } else {
    SumBlock<BFloat16Gradient>(list.tasks[task], first);
  }
}

absl::Status CheckTask(const GradientSumTask& task) {
  if (task.source_count >= 1 && task.source_count <= kMaxGradientSources) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("sum gradients: 1 to ", kMaxGradientSources, " sources expected, got ", task.source_count));
}

absl::Status Launch(absl::Span<const GradientSumTask> tasks, cudaStream_t stream) {
  TaskList list = {};
  int64_t blocks = 0;
  for (const GradientSumTask& task : tasks) {
    if (task.count == 0) continue;
    list.tasks[list.count] = task;
    list.first_block[list.count++] = blocks;
    blocks += (task.count + kBlockElements - 1) / kBlockElements;
  }
  list.first_block[list.count] = blocks;
  if (blocks == 0) return absl::OkStatus();
  SumGradientsKernel<<<static_cast<unsigned int>(blocks), kThreads, 0, stream>>>(list);
  return LaunchStatus("sum gradients");
}

}  // namespace

absl::Status SumGradients(absl::Span<const GradientSumTask> tasks, cudaStream_t stream) {
  for (const GradientSumTask& task : tasks) RETURN_IF_ERROR(CheckTask(task));
  for (size_t first = 0; first < tasks.size(); first += kTasksPerLaunch) {
    RETURN_IF_ERROR(Launch(tasks.subspan(first, kTasksPerLaunch), stream));
  }
  return absl::OkStatus();
}

}  // namespace paramshard::gpu
