#include "kernels/base/status_macros.h"
#include "kernels/copy/range_copies_cuda.h"
#include "kernels/gpu/status.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreads = 256;
// Bytes that one block copies: enough loads in flight, and enough blocks to fill the GPU from a few MiB on.
constexpr int64_t kBlockBytes = 32 * 1024;
constexpr int kLoads = 8;
// Ranges in one launch. kMostRanges fit the kernel parameters that any driver takes. Most gathers need only kFewRanges,
// and fewer parameters launch sooner.
constexpr int kMostRanges = 120;
constexpr int kFewRanges = 16;

struct Range {
  uint8_t* target;
  const uint8_t* source;
  int64_t bytes;
  uint32_t end_block;  // of the grid: this range's blocks come before it
};

template <int kCapacity>
struct Ranges {
  Range range[kCapacity];
};
static_assert(sizeof(Ranges<kMostRanges>) <= 4096, "more than a kernel's parameters");

// Copies `count` of Unit, kLoads at a time in flight.
template <typename Unit>
__device__ void CopyUnits(const uint8_t* source, uint8_t* target, int64_t count) {
  const auto* from = reinterpret_cast<const Unit*>(source);
  auto* to = reinterpret_cast<Unit*>(target);
  for (int64_t first = threadIdx.x; first < count; first += kThreads * kLoads) {
    Unit held[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (first + i * kThreads < count) held[i] = from[first + i * kThreads];
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (first + i * kThreads < count) to[first + i * kThreads] = held[i];
    }
  }
}

template <int kCapacity>
__global__ __launch_bounds__(kThreads) void CopyKernel(const __grid_constant__ Ranges<kCapacity> ranges) {
  int index = 0;
  while (blockIdx.x >= ranges.range[index].end_block) ++index;
  const Range& range = ranges.range[index];
  const uint32_t begin_block = index == 0 ? 0 : ranges.range[index - 1].end_block;
  const int64_t offset = (blockIdx.x - begin_block) * kBlockBytes;
  const uint8_t* const source = range.source + offset;
  uint8_t* const target = range.target + offset;
  const int64_t bytes = min(kBlockBytes, range.bytes - offset);
  const auto alignment = reinterpret_cast<uintptr_t>(source) | reinterpret_cast<uintptr_t>(target);
  int64_t copied = 0;
  if (alignment % sizeof(uint4) == 0) {
    copied = bytes / sizeof(uint4) * sizeof(uint4);
    CopyUnits<uint4>(source, target, bytes / sizeof(uint4));
  } else if (alignment % sizeof(uint32_t) == 0) {
    copied = bytes / sizeof(uint32_t) * sizeof(uint32_t);
    CopyUnits<uint32_t>(source, target, bytes / sizeof(uint32_t));
  }
  CopyUnits<uint8_t>(source + copied, target + copied, bytes - copied);
}

template <int kCapacity>
absl::Status Launch(absl::Span<const RangeCopy> copies, cudaStream_t stream) {
  Ranges<kCapacity> ranges;
  int count = 0;
  uint32_t blocks = 0;
  for (const RangeCopy& copy : copies) {
    if (copy.bytes == 0) continue;
    blocks += static_cast<uint32_t>((copy.bytes + kBlockBytes - 1) / kBlockBytes);
    ranges.range[count++] = {static_cast<uint8_t*>(copy.target), static_cast<const uint8_t*>(copy.source), copy.bytes,
                             blocks};
  }
  if (blocks > 0) CopyKernel<kCapacity><<<blocks, kThreads, 0, stream>>>(ranges);
  return LaunchStatus("launch copies of ranges");
}

}  // namespace

absl::Status CopyRanges(absl::Span<const RangeCopy> copies, cudaStream_t stream) {
  if (copies.size() <= kFewRanges) return Launch<kFewRanges>(copies, stream);
  for (size_t first = 0; first < copies.size(); first += kMostRanges) {
    RETURN_IF_ERROR(Launch<kMostRanges>(copies.subspan(first, kMostRanges), stream));
  }
  return absl::OkStatus();
}

absl::Status LoadCopyRanges() {
  cudaFuncAttributes attributes;
  for (const void* kernel : {reinterpret_cast<const void*>(CopyKernel<kFewRanges>),
                             reinterpret_cast<const void*>(CopyKernel<kMostRanges>)}) {
    RETURN_IF_ERROR(ToStatus(cudaFuncGetAttributes(&attributes, kernel), "load a kernel that copies ranges"));
  }
  return absl::OkStatus();
}

}  // namespace paramshard::gpu
