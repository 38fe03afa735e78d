#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/copy/range_copies_cuda.h"
#include "kernels/gpu/status.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreads = 256;
// Of one block: enough loads in flight, and enough blocks for the whole GPU at a few MiB.
constexpr int64_t kBlockBytes = 32 * 1024;
// Ranges of a launch: what fits the parameters of a kernel that any driver takes; and what a gather mostly has, so that
// its launch carries less.
constexpr int kManyRanges = 120;
constexpr int kFewRanges = 24;
constexpr int kLoads = 8;
// Of a gentle copy: a third of the GPU.
constexpr uint32_t kGentleBlocks = 48;

struct Range {
  uint8_t* target;
  const uint8_t* source;
  int64_t bytes;
  uint32_t end_block;  // of the grid: this range's blocks come before it
};

template <int kMost>
struct Ranges {
  Range range[kMost];
};
static_assert(sizeof(Ranges<kManyRanges>) <= 4096, "more than a kernel's parameters");

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

// Copies kBlockBytes of a range, or what is left of it.
__device__ void CopyBlock(const Range& range, int64_t offset) {
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

// `blocks` of all ranges together, which the grid's blocks share.
template <int kMost>
__global__ __launch_bounds__(kThreads) void CopyKernel(const __grid_constant__ Ranges<kMost> ranges, uint32_t blocks) {
  int index = 0;
  uint32_t begin_block = 0;
  for (uint32_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    while (block >= ranges.range[index].end_block) begin_block = ranges.range[index++].end_block;
    CopyBlock(ranges.range[index], (block - begin_block) * kBlockBytes);
  }
}

uint32_t BlocksOf(const RangeCopy& copy) { return static_cast<uint32_t>((copy.bytes + kBlockBytes - 1) / kBlockBytes); }

// Requires at most kMost copies.
template <int kMost>
absl::Status Launch(absl::Span<const RangeCopy> copies, cudaStream_t stream, CopyPace pace) {
  Ranges<kMost> ranges;
  uint32_t blocks = 0;
  int count = 0;
  for (const RangeCopy& copy : copies) {
    if (copy.bytes == 0) continue;
    blocks += BlocksOf(copy);
    ranges.range[count++] = {static_cast<uint8_t*>(copy.target), static_cast<const uint8_t*>(copy.source), copy.bytes,
                             blocks};
  }
  const uint32_t grid = pace == CopyPace::kGentle ? std::min(blocks, kGentleBlocks) : blocks;
  if (count > 0) CopyKernel<kMost><<<grid, kThreads, 0, stream>>>(ranges, blocks);
  return LaunchStatus("launch copies of ranges");
}

template <int kMost>
absl::Status Load() {
  cudaFuncAttributes attributes;
  return ToStatus(cudaFuncGetAttributes(&attributes, CopyKernel<kMost>), "load the kernel that copies ranges");
}

}  // namespace

absl::Status CopyRanges(absl::Span<const RangeCopy> copies, cudaStream_t stream, CopyPace pace) {
  for (; copies.size() > kFewRanges; copies.remove_prefix(std::min<size_t>(copies.size(), kManyRanges))) {
    RETURN_IF_ERROR(Launch<kManyRanges>(copies.subspan(0, kManyRanges), stream, pace));
  }
  return Launch<kFewRanges>(copies, stream, pace);
}

absl::Status LoadCopyRanges() {
  RETURN_IF_ERROR(Load<kFewRanges>());
  return Load<kManyRanges>();
}

}  // namespace paramshard::gpu
