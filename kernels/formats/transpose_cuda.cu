#include "kernels/formats/transpose_cuda.h"

#include "kernels/gpu/status.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreads = 256;
// Elements of a side, and the bytes that they take.
constexpr int kSquare = 128;
constexpr int kSquareBytes = kSquare / 2;

// A block transposes one square through shared memory; what lies outside of the matrix reads as zero. Bytes are
// neighbours of neighbouring threads on both sides.
__global__ void TransposeNibblesKernel(const uint8_t* data, int64_t rows, int64_t cols, int64_t across, uint8_t* out) {
  __shared__ uint8_t square[kSquare][kSquareBytes + 1];
  const int64_t row_bytes = (cols + 1) / 2;
  const int64_t out_row_bytes = (rows + 1) / 2;
  const int64_t first_row = blockIdx.x / across * kSquare;
  const int64_t first_col = blockIdx.x % across * kSquare;
  for (int i = threadIdx.x; i < kSquare * kSquareBytes; i += kThreads) {
    const int64_t row = first_row + i / kSquareBytes;
    const int64_t byte = first_col / 2 + i % kSquareBytes;
    square[i / kSquareBytes][i % kSquareBytes] = row < rows && byte < row_bytes ? data[row * row_bytes + byte] : 0;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kSquare * kSquareBytes; i += kThreads) {
    const int in_row = i % kSquareBytes * 2;
    const int in_col = i / kSquareBytes;
    const int64_t byte = first_row / 2 + i % kSquareBytes;
    if (first_col + in_col >= cols || byte >= out_row_bytes) continue;
    const int shift = in_col % 2 * 4;
    const int low = square[in_row][in_col / 2] >> shift & 0xf;
    const int high = square[in_row + 1][in_col / 2] >> shift & 0xf;
    out[(first_col + in_col) * out_row_bytes + byte] = static_cast<uint8_t>(low | high << 4);
  }
}

}  // namespace

absl::Status TransposeNibbles(const uint8_t* data, int64_t rows, int64_t cols, uint8_t* out, cudaStream_t stream) {
  if (rows * cols == 0) return absl::OkStatus();
  const int64_t across = (cols + kSquare - 1) / kSquare;
  const auto blocks = static_cast<unsigned int>((rows + kSquare - 1) / kSquare * across);
  TransposeNibblesKernel<<<blocks, kThreads, 0, stream>>>(data, rows, cols, across, out);
  return LaunchStatus("transpose nibbles");
}

}  // namespace paramshard::gpu
