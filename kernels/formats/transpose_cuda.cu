#include "kernels/formats/transpose_cuda.h"

#include "kernels/gpu/status.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

// A block transposes a square whose columns fill this many words each. In shared memory a row is a column of the
// square, and word w of row c lies at w ^ Swizzle(c): threads that write different rows beside each other, and threads
// that read one row, use all banks.
constexpr int kWords = 32;
constexpr int kSideBytes = 4 * kWords;

// A thread reads pieces of 16 bytes of neighbouring rows, as many rows as a word has elements.
constexpr int kPieceBytes = 16;
constexpr int kPieces = kSideBytes / kPieceBytes;

template <int kBits>
constexpr int kPerWord = 32 / kBits;
template <int kBits>
constexpr int kSide = kWords* kPerWord<kBits>;

// `column`: of the square. Columns of one piece of a row share it.
template <int kBits>
__device__ int Swizzle(int column) {
  return column / (kPieceBytes * 8 / kBits) * 4;
}

// Four rows of four bytes become four columns.
__device__ void TransposeWords(const uint32_t (&rows)[4], uint32_t (&columns)[4]) {
  const uint32_t first_halves = __byte_perm(rows[0], rows[1], 0x5140);
  const uint32_t second_halves = __byte_perm(rows[0], rows[1], 0x7362);
  const uint32_t lower_first_halves = __byte_perm(rows[2], rows[3], 0x5140);
  const uint32_t lower_second_halves = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(first_halves, lower_first_halves, 0x5410);
  columns[1] = __byte_perm(first_halves, lower_first_halves, 0x7632);
  columns[2] = __byte_perm(second_halves, lower_second_halves, 0x5410);
  columns[3] = __byte_perm(second_halves, lower_second_halves, 0x7632);
}

// Eight rows of eight nibbles: first those of two rows are paired, then the pairs are transposed as bytes.
__device__ void TransposeWords(const uint32_t (&rows)[8], uint32_t (&columns)[8]) {
  uint32_t even_pairs[4];
  uint32_t odd_pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t upper = rows[2 * i];
    const uint32_t lower = rows[2 * i + 1];
    even_pairs[i] = (upper & 0x0f0f0f0fu) | (lower << 4 & 0xf0f0f0f0u);
    odd_pairs[i] = (upper >> 4 & 0x0f0f0f0fu) | (lower & 0xf0f0f0f0u);
  }
  uint32_t even_columns[4];
  uint32_t odd_columns[4];
  TransposeWords(even_pairs, even_columns);
  TransposeWords(odd_pairs, odd_columns);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    columns[2 * i] = even_columns[i];
    columns[2 * i + 1] = odd_columns[i];
  }
}

// Reads 16 bytes of a row, of which the first `count` exist; the others are anything, and all are zero without any.
template <bool kAligned>
__device__ void ReadPiece(const uint8_t* source, int64_t count, uint32_t (&words)[4]) {
  if constexpr (kAligned) {
    const uint4 piece = count > 0 ? *reinterpret_cast<const uint4*>(source) : uint4{};
    words[0] = piece.x;
    words[1] = piece.y;
    words[2] = piece.z;
    words[3] = piece.w;
  } else {
    const int offset = static_cast<int>(reinterpret_cast<uintptr_t>(source) % 4);
    const auto* const aligned = reinterpret_cast<const uint32_t*>(source - offset);
    const int64_t end = count > 0 ? offset + count : 0;
    uint32_t word = end > 0 ? aligned[0] : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_needed = 4 * (i + 1) < end && 4 * (i + 1) < offset + kPieceBytes;
      const uint32_t next = is_needed ? aligned[i + 1] : 0;
      words[i] = __funnelshift_r(word, next, 8 * offset);
      word = next;
    }
  }
}

// Stores the first `count` bytes of a row of the transpose, by a warp: whole words where they are aligned, and single
// bytes before and after them. `word(i)` gives word i of the row.
template <typename Words>
__device__ void StoreShiftedRow(const Words& word, int count, uint8_t* target) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head = static_cast<int>(-reinterpret_cast<uintptr_t>(target) % 4);
  const int words_end = count < head ? head : head + (count - head) / 4 * 4;
  if (head + 4 * lane < words_end) {
    const uint32_t shifted = __funnelshift_r(word(lane), word((lane + 1) % kWords), 8 * head);
    *reinterpret_cast<uint32_t*>(target + head + 4 * lane) = shifted;
  }
  if (lane >= 8) return;
  // Up to three bytes before the words, up to three after them.
  const int byte = lane < 4 ? lane : words_end + lane - 4;
  if ((lane < 4 && byte >= head) || byte >= count) return;
  target[byte] = static_cast<uint8_t>(word(byte / 4) >> (byte % 4 * 8));
}

// Rows of the matrix and of its transpose begin at multiples of 16 bytes where so it is said.
template <int kBits, bool kAlignedIn, bool kAlignedOut>
__global__ __launch_bounds__(kThreads) void TransposeKernel(const uint8_t* data, int64_t rows, int64_t cols,
                                                            uint32_t squares_across, uint8_t* out) {
  constexpr int kRowsOfThread = kPerWord<kBits>;
  __shared__ uint4 square[kSide<kBits>][kPieces];
  const int64_t row_bytes = (cols * kBits + 7) / 8;
  const int64_t out_row_bytes = (rows * kBits + 7) / 8;
  const int64_t first_row = int64_t{blockIdx.x / squares_across} * kSide<kBits>;
  const int64_t first_col = int64_t{blockIdx.x % squares_across} * kSide<kBits>;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  const int line = static_cast<int>(threadIdx.x) / kPieces;

  const int64_t byte = first_col * kBits / 8 + piece * kPieceBytes;
  uint32_t words[kRowsOfThread][4];
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) {
    const int64_t row = first_row + line * kRowsOfThread + i;
    ReadPiece<kAlignedIn>(data + row * row_bytes + byte, row < rows ? row_bytes - byte : 0, words[i]);
  }
  auto* const shared_words = reinterpret_cast<uint32_t*>(square);
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    uint32_t lines[kRowsOfThread];
    uint32_t columns[kRowsOfThread];
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) lines[i] = words[i][w];
    TransposeWords(lines, columns);
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      const int column = (piece * 4 + w) * kRowsOfThread + i;
      shared_words[column * kWords + (line ^ Swizzle<kBits>(column))] = columns[i];
    }
  }
  __syncthreads();

  const int64_t out_byte = first_row * kBits / 8;
  if constexpr (kAlignedOut) {
    if (out_byte + piece * kPieceBytes >= out_row_bytes) return;
#pragma unroll
    for (int column = line; column < kSide<kBits>; column += kThreads / kPieces) {
      if (first_col + column >= cols) return;
      uint8_t* const target = out + (first_col + column) * out_row_bytes + out_byte;
      reinterpret_cast<uint4*>(target)[piece] = square[column][piece ^ (Swizzle<kBits>(column) / 4)];
    }
  } else {
    const int count = static_cast<int>(min(int64_t{kSideBytes}, out_row_bytes - out_byte));
    for (int column = static_cast<int>(threadIdx.x) / kWarp; column < kSide<kBits>; column += kThreads / kWarp) {
      if (first_col + column >= cols) return;
      const uint32_t* const row = shared_words + column * kWords;
      StoreShiftedRow([&](int w) { return row[w ^ Swizzle<kBits>(column)]; }, count,
                      out + (first_col + column) * out_row_bytes + out_byte);
    }
  }
}

bool IsAligned(const uint8_t* data, int64_t row_bytes) {
  return reinterpret_cast<uintptr_t>(data) % kPieceBytes == 0 && row_bytes % kPieceBytes == 0;
}

template <int kBits>
void Transpose(const uint8_t* data, int64_t rows, int64_t cols, uint8_t* out, cudaStream_t stream) {
  const int64_t across = (cols + kSide<kBits> - 1) / kSide<kBits>;
  const int64_t down = (rows + kSide<kBits> - 1) / kSide<kBits>;
  const bool in_aligned = IsAligned(data, (cols * kBits + 7) / 8);
  const bool out_aligned = IsAligned(out, (rows * kBits + 7) / 8);
  const auto kernel = in_aligned
                          ? (out_aligned ? TransposeKernel<kBits, true, true> : TransposeKernel<kBits, true, false>)
                          : (out_aligned ? TransposeKernel<kBits, false, true> : TransposeKernel<kBits, false, false>);
  const auto blocks = static_cast<unsigned int>(across * down);
  kernel<<<blocks, kThreads, 0, stream>>>(data, rows, cols, static_cast<uint32_t>(across), out);
}

}  // namespace

absl::Status TransposeBytes(const uint8_t* data, int64_t rows, int64_t cols, uint8_t* out, cudaStream_t stream) {
  if (rows * cols == 0) return absl::OkStatus();
  Transpose<8>(data, rows, cols, out, stream);
  return LaunchStatus("transpose bytes");
}

absl::Status TransposeNibbles(const uint8_t* data, int64_t rows, int64_t cols, uint8_t* out, cudaStream_t stream) {
  if (rows * cols == 0) return absl::OkStatus();
  Transpose<4>(data, rows, cols, out, stream);
  return LaunchStatus("transpose nibbles");
}

}  // namespace paramshard::gpu
