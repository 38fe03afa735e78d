#include "kernels/optim/master_remainder_cuda.h"

#include <algorithm>

#include "kernels/gpu/status.h"
#include "kernels/optim/master_remainder.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1 << 16;

unsigned int BlocksFor(int64_t count) {
  return static_cast<unsigned int>(std::min(kMostBlocks, (count + kThreads - 1) / kThreads));
}

__global__ __launch_bounds__(kThreads) void SplitKernel(const float* values, int64_t count, uint16_t* upper,
                                                        int16_t* remainder) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    const auto split = Split(values[i]);
    upper[i] = split.weight;
    remainder[i] = split.remainder;
  }
}

__global__ __launch_bounds__(kThreads) void JoinKernel(const uint16_t* upper, const int16_t* remainder, int64_t count,
                                                       float* values) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    values[i] = Join({upper[i], remainder[i]});
  }
}

}  // namespace

absl::Status SplitMaster(const float* values, int64_t count, uint16_t* upper, int16_t* remainder, cudaStream_t stream) {
  if (count == 0) return absl::OkStatus();
  SplitKernel<<<BlocksFor(count), kThreads, 0, stream>>>(values, count, upper, remainder);
  return LaunchStatus("split masters");
}

absl::Status JoinMaster(const uint16_t* upper, const int16_t* remainder, int64_t count, float* values,
                        cudaStream_t stream) {
  if (count == 0) return absl::OkStatus();
  JoinKernel<<<BlocksFor(count), kThreads, 0, stream>>>(upper, remainder, count, values);
  return LaunchStatus("join masters");
}

}  // namespace paramshard::gpu
