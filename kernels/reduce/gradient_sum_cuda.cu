#include "kernels/reduce/gradient_sum_cuda.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/float_bits.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/packed_casts_cuda.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"

namespace paramshard::gpu {
namespace {

// A block of threads sums one chunk of sum_of_squares.h; each thread is one of its lanes.
constexpr int kThreads = 256;
constexpr int kRounds = 16;
constexpr int kWarp = 32;
constexpr int kQuadsPerThread = kRounds / 4;
constexpr int64_t kChunk = int64_t{kThreads} * kRounds;
constexpr int kTasksPerLaunch = 64;

// The tasks of one launch, whose accumulators have one type, and which blocks are whose. It travels as the kernel's
// parameter.
struct TaskList {
  GradientSumTask tasks[kTasksPerLaunch];
  int64_t first_block[kTasksPerLaunch + 1];
  int count;
  // Set if squares are summed: the result of each block's chunk, and the place of each task's result.
  double* chunk_sums;
  int32_t* chunk_counts;
  SquareSum* results[kTasksPerLaunch];
};

__device__ float4 Add(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// Gradients in memory as float32, one or four. Store() returns the stored values.
struct FloatGradient {
  using Stored = float;
  __device__ static float Load(const Stored* source) { return *source; }
  __device__ static float4 LoadQuad(const Stored* source) { return *reinterpret_cast<const float4*>(source); }
  __device__ static float Store(float value, Stored* target) { return *target = CanonicalNan(value); }
  __device__ static float4 StoreQuad(float4 values, Stored* target) {
    return *reinterpret_cast<float4*>(target) = {CanonicalNan(values.x), CanonicalNan(values.y), CanonicalNan(values.z),
                                                 CanonicalNan(values.w)};
  }
};

struct BFloat16Gradient {
  using Stored = uint16_t;
  __device__ static float Load(const Stored* source) { return DecodeBFloat16(*source); }
  __device__ static float4 LoadQuad(const Stored* source) {
    return DecodeQuad(*reinterpret_cast<const uint2*>(source));
  }
  __device__ static float Store(float value, Stored* target) {
    *target = static_cast<uint16_t>(EncodeBFloat16Pair(value, 0.0f));
    return DecodeBFloat16(*target);
  }
  __device__ static float4 StoreQuad(float4 values, Stored* target) {
    const uint2 codes = {EncodeBFloat16Pair(values.x, values.y), EncodeBFloat16Pair(values.z, values.w)};
    *reinterpret_cast<uint2*>(target) = codes;
    return DecodeQuad(codes);
  }

 private:
  __device__ static float4 DecodeQuad(uint2 codes) {
    return {FloatFromBits(codes.x << 16), FloatFromBits(codes.x & 0xffff0000u), FloatFromBits(codes.y << 16),
            FloatFromBits(codes.y & 0xffff0000u)};
  }
};

// Values that a block stores in its accumulator, kept for the sum of squares.
struct ChunkValues {
  static constexpr int kSourcesInFlight = 2;  // more take registers that blocks need

  float4 quads[kChunk / 4];
};
struct NoValues {
  static constexpr int kSourcesInFlight = 3;
};

__device__ void Keep(float4 quad, int index, ChunkValues& values) { values.quads[index] = quad; }
__device__ void Keep(float value, int index, ChunkValues& values) {
  reinterpret_cast<float*>(values.quads)[index] = value;
}
template <typename Value>
__device__ void Keep(Value, int, NoValues&) {}

// The loads of all quads and of a few sources are in flight before the first is added.
template <typename Gradient, typename Accumulator, typename Values>
__device__ void SumQuads(const GradientSumTask& task, int64_t first, Values& values) {
  using Stored = typename Gradient::Stored;
  float4 sums[kQuadsPerThread];
  const int64_t first_of_thread = first + threadIdx.x * 4;
  auto* const accumulator = static_cast<typename Accumulator::Stored*>(task.accumulator.data) + first_of_thread;
  if (task.source_count == 0) {
#pragma unroll
    for (int q = 0; q < kQuadsPerThread; ++q) sums[q] = Accumulator::LoadQuad(accumulator + q * kThreads * 4);
#pragma unroll
    for (int q = 0; q < kQuadsPerThread; ++q) Keep(sums[q], q * kThreads + threadIdx.x, values);
    return;
  }
#pragma unroll
  for (int q = 0; q < kQuadsPerThread; ++q) {
    sums[q] = Gradient::LoadQuad(static_cast<const Stored*>(task.sources[0]) + first_of_thread + q * kThreads * 4);
  }
#pragma unroll Values::kSourcesInFlight
  for (int s = 1; s < task.source_count; ++s) {
    const Stored* const source = static_cast<const Stored*>(task.sources[s]) + first_of_thread;
#pragma unroll
    for (int q = 0; q < kQuadsPerThread; ++q) sums[q] = Add(sums[q], Gradient::LoadQuad(source + q * kThreads * 4));
  }
#pragma unroll
  for (int q = 0; q < kQuadsPerThread; ++q) {
    auto* const target = accumulator + q * kThreads * 4;
    if (!task.overwrite) sums[q] = Add(Accumulator::LoadQuad(target), sums[q]);
    Keep(Accumulator::StoreQuad(sums[q], target), q * kThreads + threadIdx.x, values);
  }
}

template <typename Gradient, typename Accumulator>
__device__ float SumOne(const GradientSumTask& task, int64_t i) {
  using Stored = typename Gradient::Stored;
  auto* const target = static_cast<typename Accumulator::Stored*>(task.accumulator.data) + i;
  if (task.source_count == 0) return Accumulator::Load(target);
  float sum = Gradient::Load(static_cast<const Stored*>(task.sources[0]) + i);
  for (int s = 1; s < task.source_count; ++s) {
    sum = sum + Gradient::Load(static_cast<const Stored*>(task.sources[s]) + i);
  }
  if (!task.overwrite) sum = Accumulator::Load(target) + sum;
  return Accumulator::Store(sum, target);
}

// Returns true if every array can be accessed four elements at a time.
__device__ bool HasQuads(const GradientSumTask& task) {
  const auto quad = [](GradientType type) { return static_cast<uintptr_t>(4 * GradientBytes(type)); };
  uintptr_t misaligned = reinterpret_cast<uintptr_t>(task.accumulator.data) % quad(task.accumulator.type);
  for (int s = 0; s < task.source_count; ++s) {
    misaligned |= reinterpret_cast<uintptr_t>(task.sources[s]) % quad(task.type);
  }
  return misaligned == 0;
}

// Elements behind the last one count as zeros, which change no lane.
template <typename Gradient, typename Accumulator, typename Values>
__device__ void SumChunk(const GradientSumTask& task, int64_t first, Values& values) {
  if (first + kChunk <= task.count && HasQuads(task)) return SumQuads<Gradient, Accumulator>(task, first, values);
#pragma unroll 4
  for (int i = threadIdx.x; i < kChunk; i += kThreads) {
    Keep(first + i < task.count ? SumOne<Gradient, Accumulator>(task, first + i) : 0.0f, i, values);
  }
}

template <typename Accumulator, typename Values>
__device__ void SumChunkOf(const GradientSumTask& task, int64_t first, Values& values) {
  if (task.type == GradientType::kFP32) {
    SumChunk<FloatGradient, Accumulator>(task, first, values);
  } else {
    SumChunk<BFloat16Gradient, Accumulator>(task, first, values);
  }
}

// The task that a block works for.
__device__ int TaskOf(const TaskList& list) {
  int task = 0;
#pragma unroll
  for (int step = kTasksPerLaunch / 2; step > 0; step /= 2) {
    if (task + step < list.count && list.first_block[task + step] <= blockIdx.x) task += step;
  }
  return task;
}

template <typename Accumulator>
__global__ __launch_bounds__(kThreads) void SumGradientsKernel(const __grid_constant__ TaskList list) {
  const int task = TaskOf(list);
  NoValues none;
  SumChunkOf<Accumulator>(list.tasks[task], (blockIdx.x - list.first_block[task]) * kChunk, none);
}

// The tree of step 3 in sum_of_squares.h. The result is thread 0's. Not again before a barrier.
__device__ double CombineLanes(double lane) {
  __shared__ double lanes[kThreads];
  lanes[threadIdx.x] = lane;
  __syncthreads();
  if (threadIdx.x >= kWarp) return 0;
  constexpr int kPerThread = kThreads / kWarp;
  double own[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) own[i] = lanes[threadIdx.x + i * kWarp];
#pragma unroll
  for (int width = kPerThread / 2; width > 0; width /= 2) {
#pragma unroll
    for (int i = 0; i < width; ++i) own[i] = own[i] + own[i + width];
  }
#pragma unroll
  for (int width = kWarp / 2; width > 0; width /= 2) own[0] = own[0] + __shfl_down_sync(~0u, own[0], width);
  return own[0];
}

// The same sums, and the sum of squares of each chunk.
template <typename Accumulator>
__global__ __launch_bounds__(kThreads, 5) void SumSquaresKernel(const __grid_constant__ TaskList list) {
  __shared__ ChunkValues values;
  const int task = TaskOf(list);
  SumChunkOf<Accumulator>(list.tasks[task], (blockIdx.x - list.first_block[task]) * kChunk, values);
  __syncthreads();
  double lane = 0;
  int non_finite = 0;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const float value = reinterpret_cast<const float*>(values.quads)[round * kThreads + threadIdx.x];
    const double wide = static_cast<double>(value);
    // The square of a float is exact in double, so one fused operation rounds as the addition alone.
    lane = fma(wide, wide, lane);
    non_finite += (FloatBits(value) & kFloatMagnitudeMask) >= kFloatInfinityBits ? 1 : 0;
  }
  // Rarely is there one to be counted.
  int count = 0;
  if (__syncthreads_or(non_finite) != 0) {
    __shared__ int counted;
    if (threadIdx.x == 0) counted = 0;
    __syncthreads();
    if (non_finite > 0) atomicAdd(&counted, non_finite);
    __syncthreads();
    count = counted;
  }
  const double sum = CombineLanes(lane);
  if (threadIdx.x != 0) return;
  list.chunk_sums[blockIdx.x] = sum;
  list.chunk_counts[blockIdx.x] = count;
}

// A block makes one task's chunk sums into one, level by level: the chunk sums of a level take the place of the values
// that they were made of. The counts are added in any order.
__global__ __launch_bounds__(kThreads) void CombineChunksKernel(const __grid_constant__ TaskList list) {
  const int task = blockIdx.x;
  double* const sums = list.chunk_sums + list.first_block[task];
  const int32_t* const counts = list.chunk_counts + list.first_block[task];
  int64_t count = list.first_block[task + 1] - list.first_block[task];
  unsigned long long non_finite = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) non_finite += static_cast<unsigned long long>(counts[i]);
  SquareSum* const result = list.results[task];
  if (non_finite > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&result->non_finite), non_finite);
  while (count > 1) {
    const int64_t chunks = (count + kChunk - 1) / kChunk;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      double lane = 0;
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const int64_t i = chunk * kChunk + round * kThreads + threadIdx.x;
        if (i < count) lane = lane + sums[i];
      }
      const double sum = CombineLanes(lane);
      if (threadIdx.x == 0) sums[chunk] = sum;
      __syncthreads();
    }
    count = chunks;
  }
  if (threadIdx.x == 0) result->sum = sums[0];
}

int64_t ChunksIn(int64_t count) { return (count + kChunk - 1) / kChunk; }

absl::Status CheckTask(const GradientSumTask& task, int least_sources) {
  if (task.source_count >= least_sources && task.source_count <= kMaxGradientSources) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("sum gradients: want ", least_sources, " to ", kMaxGradientSources,
                                                 " sources, got ", task.source_count));
}

GradientType AccumulatorOf(const TaskList& list) { return list.tasks[0].accumulator.type; }

// Calls launch(list, blocks) for the tasks that are not empty, up to 64 at a time, with accumulators of one type.
// `results` has a place for each task.
template <typename LaunchList>
absl::Status ForEachList(absl::Span<const GradientSumTask> tasks, SquareSum* results, const LaunchList& launch) {
  TaskList list = {};
  const auto flush = [&]() -> absl::Status {
    if (list.count == 0) return absl::OkStatus();
    RETURN_IF_ERROR(launch(list, list.first_block[list.count]));
    list.count = 0;
    return absl::OkStatus();
  };
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].count == 0) continue;
    if (list.count > 0 && tasks[i].accumulator.type != AccumulatorOf(list)) RETURN_IF_ERROR(flush());
    list.tasks[list.count] = tasks[i];
    list.results[list.count] = results + i;
    list.first_block[list.count + 1] = list.first_block[list.count] + ChunksIn(tasks[i].count);
    if (++list.count == kTasksPerLaunch) RETURN_IF_ERROR(flush());
  }
  return flush();
}

}  // namespace

absl::Status SumGradients(absl::Span<const GradientSumTask> tasks, cudaStream_t stream) {
  for (const GradientSumTask& task : tasks) RETURN_IF_ERROR(CheckTask(task, 1));
  return ForEachList(tasks, nullptr, [&](const TaskList& list, int64_t blocks) {
    const auto kernel = AccumulatorOf(list) == GradientType::kFP32 ? SumGradientsKernel<FloatGradient>
                                                                   : SumGradientsKernel<BFloat16Gradient>;
    kernel<<<static_cast<unsigned int>(blocks), kThreads, 0, stream>>>(list);
    return LaunchStatus("sum gradients");
  });
}

absl::StatusOr<SquareSummer> SquareSummer::Create(int device, int64_t tasks, int64_t elements) {
  SquareSummer summer(device);
  const int accessors[] = {device};
  summer.most_tasks_ = tasks;
  // Every task may end with a partial chunk.
  summer.most_chunks_ = elements / kChunk + tasks;
  ASSIGN_OR_RETURN(summer.chunk_sums_, DeviceMemory::Create(device, summer.most_chunks_ * sizeof(double), accessors,
                                                            /*shareable=*/false));
  ASSIGN_OR_RETURN(summer.chunk_counts_, DeviceMemory::Create(device, summer.most_chunks_ * sizeof(int32_t), accessors,
                                                              /*shareable=*/false));
  ASSIGN_OR_RETURN(summer.results_,
                   DeviceMemory::Create(device, tasks * sizeof(SquareSum), accessors, /*shareable=*/false));
  ASSIGN_OR_RETURN(summer.host_results_, PinnedArray<SquareSum>::Create(tasks));
  return summer;
}

absl::Status SquareSummer::Enqueue(absl::Span<const GradientSumTask> tasks, cudaStream_t stream) {
  const auto count = static_cast<int64_t>(tasks.size());
  int64_t chunks = 0;
  for (const GradientSumTask& task : tasks) {
    RETURN_IF_ERROR(CheckTask(task, 0));
    chunks += ChunksIn(task.count);
  }
  if (count > most_tasks_ || chunks > most_chunks_) {
    return absl::InvalidArgumentError(absl::StrCat("sum squares: want at most ", most_tasks_, " tasks of ",
                                                   most_chunks_, " chunks, got ", count, " of ", chunks));
  }
  enqueued_ = count;
  std::fill_n(host_results_.data(), count, SquareSum{});
  if (chunks == 0) return absl::OkStatus();
  const DeviceScope scope(device_);
  auto* const results = reinterpret_cast<SquareSum*>(results_.data());
  auto* next_sums = reinterpret_cast<double*>(chunk_sums_.data());
  auto* next_counts = reinterpret_cast<int32_t*>(chunk_counts_.data());
  RETURN_IF_ERROR(ToStatus(cudaMemsetAsync(results, 0, count * sizeof(SquareSum), stream), "clear sums of squares"));
  RETURN_IF_ERROR(ForEachList(tasks, results, [&](TaskList& list, int64_t blocks) {
    list.chunk_sums = next_sums;
    list.chunk_counts = next_counts;
    next_sums += blocks;
    next_counts += blocks;
    const auto kernel = AccumulatorOf(list) == GradientType::kFP32 ? SumSquaresKernel<FloatGradient>
                                                                   : SumSquaresKernel<BFloat16Gradient>;
    kernel<<<static_cast<unsigned int>(blocks), kThreads, 0, stream>>>(list);
    CombineChunksKernel<<<list.count, kThreads, 0, stream>>>(list);
    return LaunchStatus("sum squares");
  }));
  return ToStatus(
      cudaMemcpyAsync(host_results_.data(), results, count * sizeof(SquareSum), cudaMemcpyDeviceToHost, stream),
      "download sums of squares");
}

absl::StatusOr<std::vector<SquareSum>> SquareSummer::Await(cudaStream_t stream) const {
  RETURN_IF_ERROR(AwaitStream(device_, stream));
  return std::vector<SquareSum>(host_results_.data(), host_results_.data() + enqueued_);
}

absl::StatusOr<std::vector<SquareSum>> SquareSummer::Run(absl::Span<const GradientSumTask> tasks, cudaStream_t stream) {
  RETURN_IF_ERROR(Enqueue(tasks, stream));
  return Await(stream);
}

}  // namespace paramshard::gpu
