#include "kernels/formats/transpose_cuda.h"

#include "kernels/gpu/global_memory.h"
#include "kernels/gpu/job_list.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreads = 256;

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

__device__ uint32_t WordOf(const uint4& piece, int i) {
  return i == 0 ? piece.x : i == 1 ? piece.y : i == 2 ? piece.z : piece.w;
}

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

// Rows of the matrix and of its transpose begin at multiples of 16 bytes.
template <int kBits>
__device__ void TransposeSquare(const Transposition& matrix, uint32_t squares_across, uint32_t block) {
  const auto& [data, rows, cols, out] = matrix;
  constexpr int kRowsOfThread = kPerWord<kBits>;
  __shared__ uint4 square[kSide<kBits>][kPieces];
  const int64_t row_bytes = (cols * kBits + 7) / 8;
  const int64_t out_row_bytes = (rows * kBits + 7) / 8;
  const int64_t first_row = int64_t{block / squares_across} * kSide<kBits>;
  const int64_t first_col = int64_t{block % squares_across} * kSide<kBits>;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  const int line = static_cast<int>(threadIdx.x) / kPieces;

  const int64_t byte = first_col * kBits / 8 + piece * kPieceBytes;
  uint4 words[kRowsOfThread];
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) {
    const int64_t row = first_row + line * kRowsOfThread + i;
    const bool exists = row < rows && byte < row_bytes;
    words[i] = exists ? *reinterpret_cast<const uint4*>(data + row * row_bytes + byte) : uint4{};
  }
  auto* const shared_words = reinterpret_cast<uint32_t*>(square);
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    uint32_t lines[kRowsOfThread];
    uint32_t columns[kRowsOfThread];
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) lines[i] = WordOf(words[i], w);
    TransposeWords(lines, columns);
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      const int column = (piece * 4 + w) * kRowsOfThread + i;
      shared_words[column * kWords + (line ^ Swizzle<kBits>(column))] = columns[i];
    }
  }
  __syncthreads();

  const int64_t out_byte = first_row * kBits / 8;
  if (out_byte + piece * kPieceBytes >= out_row_bytes) return;
#pragma unroll
  for (int column = line; column < kSide<kBits>; column += kThreads / kPieces) {
    if (first_col + column >= cols) return;
    uint8_t* const target = out + (first_col + column) * out_row_bytes + out_byte;
    reinterpret_cast<uint4*>(target)[piece] = square[column][piece ^ (Swizzle<kBits>(column) / 4)];
  }
}

// Transposes a matrix whose rows, or those of its transpose, begin anywhere.
//
// A block reads a band of rows into shared memory, in the aligned pieces that hold them, and shifts words while it
// transposes. In each row of the transpose it stores the aligned pieces that begin in its kStoredBytes, each joined
// from two pieces in shared memory. The band is one piece longer than its stored part, so that no piece needs two
// bands.
template <int kBits>
struct Band {
  static constexpr int kColumns = 128;
  // Pieces of a row of the transpose.
  static constexpr int kPieces = 16;
  static constexpr int kStoredBytes = (kPieces - 1) * kPieceBytes;
  static constexpr int kRowsOfPiece = kPieceBytes * 8 / kBits;
  static constexpr int kRows = kPieces * kRowsOfPiece;
  static constexpr int kRowBytes = kColumns * kBits / 8;
  static constexpr int kRowWords = kRowBytes / 4;
  // A row begins anywhere in the first of the pieces that are read.
  static constexpr int kReadPieces = kRowBytes / kPieceBytes + 1;
  static constexpr int kPitchBytes = kReadPieces * kPieceBytes;
  // Squares that a thread transposes. A square is a piece of the transpose by a word of the matrix.
  static constexpr int kTurns = kPieces * kRowWords / kThreads;
  static_assert(kPieces * kRowWords % kThreads == 0 && kRows * kReadPieces % kThreads == 0);

  // Returns the place of a piece of the transpose in shared memory: neighboring threads use all banks.
  __device__ static int Place(int column, int piece) {
    return column * kPieces + (piece ^ (column / kPerWord<kBits> % 8));
  }
};

// Beginning of a band.
struct BandOrigin {
  int64_t row;
  int64_t byte;
};

// Copies a band; zeros where the matrix has no rows.
template <int kBits>
__device__ void FetchBand(const uint8_t* data, int64_t rows, int64_t row_bytes, BandOrigin origin, uint4* shared) {
  using B = Band<kBits>;
  const int count = static_cast<int>(min(int64_t{B::kRowBytes}, row_bytes - origin.byte));
#pragma unroll
  for (int i = 0; i < B::kRows * B::kReadPieces / kThreads; ++i) {
    const int place = i * kThreads + static_cast<int>(threadIdx.x);
    const int64_t row = origin.row + place / B::kReadPieces;
    const int skipped = place % B::kReadPieces * kPieceBytes;
    const uint8_t* const begin = data + row * row_bytes + origin.byte;
    const auto phase = static_cast<int>(reinterpret_cast<uintptr_t>(begin) % kPieceBytes);
    const int wanted = row < rows ? min(max(count + phase - skipped, 0), kPieceBytes) : 0;
    CopyAsync<kPieceBytes>(shared + place, begin - phase + skipped, wanted);
  }
  CommitCopies();
}

// Transposes a word's columns of a piece: kRowsOfPiece rows, which begin at `rows` in shared memory, the first of them
// `phase` bytes later.
template <int kBits>
__device__ void TransposePiece(const uint8_t* rows, uint32_t phase, uint32_t row_bytes,
                               uint32_t (&columns)[4][kPerWord<kBits>]) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    uint32_t lines[kPerWord<kBits>];
#pragma unroll
    for (int i = 0; i < kPerWord<kBits>; ++i) {
      const int row = w * kPerWord<kBits> + i;
      const uint32_t begin = (phase + row * row_bytes) % kPieceBytes;
      const auto* const words =
          reinterpret_cast<const uint32_t*>(rows + row * Band<kBits>::kPitchBytes + begin / 4 * 4);
      lines[i] = __funnelshift_r(words[0], words[1], 8 * begin);
    }
    TransposeWords(lines, columns[w]);
  }
}

// The 16 bytes from byte `shift` < 16 on of two pieces.
__device__ uint4 ShiftPieces(const uint4& first, const uint4& second, uint32_t shift) {
  const bool by_two = (shift & 8) != 0;
  const bool by_one = (shift & 4) != 0;
  const uint32_t halves[6] = {by_two ? first.z : first.x,  by_two ? first.w : first.y,   by_two ? second.x : first.z,
                              by_two ? second.y : first.w, by_two ? second.z : second.x, by_two ? second.w : second.y};
  uint32_t words[5];
#pragma unroll
  for (int i = 0; i < 5; ++i) words[i] = by_one ? halves[i + 1] : halves[i];
  return {__funnelshift_r(words[0], words[1], 8 * shift), __funnelshift_r(words[1], words[2], 8 * shift),
          __funnelshift_r(words[2], words[3], 8 * shift), __funnelshift_r(words[3], words[4], 8 * shift)};
}

// Stores bytes [first, last) of a piece.
__device__ void StorePart(const uint4& piece, int first, int last, uint8_t* target) {
#pragma unroll
  for (int i = 0; i < kPieceBytes; ++i) {
    if (i >= first && i < last) target[i] = static_cast<uint8_t>(WordOf(piece, i / 4) >> (i % 4 * 8));
  }
}

template <int kBits>
__device__ void TransposeBand(const Transposition& matrix, uint32_t bands_across, uint32_t block) {
  const auto& [data, rows, cols, out] = matrix;
  using B = Band<kBits>;
  __shared__ uint4 shared[B::kRows * B::kReadPieces];
  const int64_t row_bytes = (cols * kBits + 7) / 8;
  const int64_t out_row_bytes = (rows * kBits + 7) / 8;
  const int64_t out_byte = int64_t{block / bands_across} * B::kStoredBytes;
  const int64_t first_col = int64_t{block % bands_across} * B::kColumns;
  const BandOrigin origin = {out_byte * 8 / kBits, first_col * kBits / 8};
  FetchBand<kBits>(data, rows, row_bytes, origin, shared);
  AwaitCopies<0>();
  __syncthreads();

  const auto thread = static_cast<int>(threadIdx.x);
  const int word = thread % B::kRowWords;
  const int first_piece = thread / B::kRowWords;
  const auto phase = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(data) + origin.row * row_bytes + origin.byte);
  uint32_t columns[B::kTurns][4][kPerWord<kBits>];
#pragma unroll
  for (int turn = 0; turn < B::kTurns; ++turn) {
    const int row = (first_piece + turn * (B::kPieces / B::kTurns)) * B::kRowsOfPiece;
    const uint8_t* const rows_of_piece = reinterpret_cast<const uint8_t*>(shared) + row * B::kPitchBytes + 4 * word;
    const auto step = static_cast<uint32_t>(row_bytes);
    TransposePiece<kBits>(rows_of_piece, phase + row * step, step, columns[turn]);
  }
  // The transpose takes the place of the rows.
  __syncthreads();
#pragma unroll
  for (int turn = 0; turn < B::kTurns; ++turn) {
    const int piece = first_piece + turn * (B::kPieces / B::kTurns);
#pragma unroll
    for (int i = 0; i < kPerWord<kBits>; ++i) {
      const auto& words = columns[turn];
      shared[B::Place(word * kPerWord<kBits> + i, piece)] = {words[0][i], words[1][i], words[2][i], words[3][i]};
    }
  }
  __syncthreads();

  // Each lane stores a piece of a row; the last lane stores the bytes before the first aligned piece of the matrix.
  const int lane = thread % B::kPieces;
  const bool is_head = lane == B::kPieces - 1;
  if (is_head && out_byte > 0) return;
#pragma unroll 2
  for (int column = thread / B::kPieces; column < B::kColumns; column += kThreads / B::kPieces) {
    if (first_col + column >= cols) return;
    uint8_t* const row = out + (first_col + column) * out_row_bytes + out_byte;
    const auto shift = static_cast<int>(-reinterpret_cast<uintptr_t>(row) % kPieceBytes);
    const int piece = is_head ? -1 : lane;
    const int begin = shift + piece * kPieceBytes;
    const int64_t left = out_row_bytes - out_byte - begin;
    const uint4 stored =
        ShiftPieces(shared[B::Place(column, max(piece, 0))], shared[B::Place(column, piece + 1)], shift);
    if (!is_head && left >= kPieceBytes) {
      StoreGlobal(stored, row + begin);
    } else {
      StorePart(stored, is_head ? -begin : 0, static_cast<int>(min(left, int64_t{kPieceBytes})), row + begin);
    }
  }
}

template <int kBits, bool kSquares>
struct TransposeJob {
  static constexpr int kThreads = gpu::kThreads;
  static constexpr int kBlocksAtOnce = 1;

  __device__ void Run(uint32_t block) const {
    if constexpr (kSquares) {
      TransposeSquare<kBits>(matrix, across, block);
    } else {
      TransposeBand<kBits>(matrix, across, block);
    }
  }

  Transposition matrix;
  uint32_t across;  // blocks
};

bool IsAligned(const uint8_t* data, int64_t row_bytes) {
  return reinterpret_cast<uintptr_t>(data) % kPieceBytes == 0 && row_bytes % kPieceBytes == 0;
}

int64_t CeilDivide(int64_t size, int64_t step) { return (size + step - 1) / step; }

template <int kBits>
absl::Status Transpose(absl::Span<const Transposition> matrices, cudaStream_t stream) {
  JobList jobs;
  for (const Transposition& matrix : matrices) {
    const auto& [data, rows, cols, out] = matrix;
    if (rows * cols == 0) continue;
    const int64_t out_row_bytes = (rows * kBits + 7) / 8;
    if (IsAligned(data, (cols * kBits + 7) / 8) && IsAligned(out, out_row_bytes)) {
      const int64_t across = CeilDivide(cols, kSide<kBits>);
      jobs.Add(TransposeJob<kBits, true>{matrix, static_cast<uint32_t>(across)},
               across * CeilDivide(rows, kSide<kBits>));
    } else {
      const int64_t across = CeilDivide(cols, Band<kBits>::kColumns);
      jobs.Add(TransposeJob<kBits, false>{matrix, static_cast<uint32_t>(across)},
               across * CeilDivide(out_row_bytes, Band<kBits>::kStoredBytes));
    }
  }
  return jobs.Launch("transpose matrices", stream);
}

}  // namespace

absl::Status TransposeBytes(absl::Span<const Transposition> matrices, cudaStream_t stream) {
  return Transpose<8>(matrices, stream);
}

absl::Status TransposeNibbles(absl::Span<const Transposition> matrices, cudaStream_t stream) {
  return Transpose<4>(matrices, stream);
}

}  // namespace paramshard::gpu
