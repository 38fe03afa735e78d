#include "kernels/formats/scale_layout_cuda.h"

#include "kernels/gpu/status.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreads = 256;

// One thread for every 4 scales of a row, in the order of `out`.
__global__ void ArrangeKernel(ScaleArrangement arrangement, const uint8_t* compact, uint8_t* out) {
  const int64_t word = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (word >= arrangement.bytes() / 4) return;
  const int64_t words_across = arrangement.padded_cols() / ScaleArrangement::kTileCols;
  int64_t row = word / words_across;
  int64_t col = word % words_across * ScaleArrangement::kTileCols;
  if (arrangement.layout == ScaleLayout::kSwizzled128x4) {
    const int64_t tile = word / ScaleArrangement::kTileRows;
    const int64_t in_tile = word % ScaleArrangement::kTileRows;
    row = tile / words_across * ScaleArrangement::kTileRows + in_tile % 4 * 32 + in_tile / 4;
    col = tile % words_across * ScaleArrangement::kTileCols;
  }
  for (int64_t i = 0; i < ScaleArrangement::kTileCols; ++i) {
    const bool padding = row >= arrangement.rows || col + i >= arrangement.cols;
    out[word * ScaleArrangement::kTileCols + i] = padding ? uint8_t{0} : compact[arrangement.Source(row, col + i)];
  }
}

}  // namespace

absl::Status ArrangeScales(const ScaleArrangement& arrangement, const uint8_t* compact, uint8_t* out,
                           cudaStream_t stream) {
  if (arrangement.bytes() == 0) return absl::OkStatus();
  if (arrangement.layout == ScaleLayout::kCompact) {
    return ToStatus(cudaMemcpyAsync(out, compact, arrangement.bytes(), cudaMemcpyDeviceToDevice, stream),
                    "copy scales");
  }
  const int64_t words = arrangement.bytes() / ScaleArrangement::kTileCols;
  ArrangeKernel<<<static_cast<unsigned int>((words + kThreads - 1) / kThreads), kThreads, 0, stream>>>(arrangement,
                                                                                                       compact, out);
  return LaunchStatus("arrange scales");
}

}  // namespace paramshard::gpu
