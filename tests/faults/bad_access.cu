#include "kernels/gpu/status.h"
#include "tests/faults/bad_access.h"

namespace paramshard::test {
namespace {

__device__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void KeepWritingKernel(volatile float* values, int64_t count, uint64_t nanoseconds) {
  const uint64_t end = Nanoseconds() + nanoseconds;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (float value = 1; Nanoseconds() < end; value += 1) {
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
      values[i] = value;
    }
  }
}

__global__ void WriteKernel(volatile int* address) { *address = 1; }

}  // namespace

absl::Status KeepWriting(float* values, int64_t count, double seconds, cudaStream_t stream) {
  KeepWritingKernel<<<64, 256, 0, stream>>>(values, count, static_cast<uint64_t>(seconds * 1e9));
  return gpu::LaunchStatus("launch a kernel that keeps writing");
}

absl::Status WriteToNowhere(cudaStream_t stream) {
  WriteKernel<<<1, 1, 0, stream>>>(reinterpret_cast<int*>(uintptr_t{0x10000}));
  return gpu::LaunchStatus("launch a kernel that writes to nowhere");
}

}  // namespace paramshard::test
