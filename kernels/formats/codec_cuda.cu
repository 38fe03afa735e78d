#include "kernels/formats/codec_cuda.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/base/float_bits.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/packed_casts_cuda.h"
#include "kernels/formats/scale_math.h"
#include "kernels/gpu/status.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreads = 256;

// A thread decodes this many groups of elements, whose codes are all on their way before the first is decoded. They lie
// in rows below each other, which share the scales of a block; or in one long row where nothing ties elements together.
constexpr int kGroups = 8;

// What codes stand for. Unpack() takes the codes of a group as words, the first code in the lowest bits; of a NaN it
// gives some NaN.

template <int kBits, int kCount>
constexpr int kWordsOf = (kBits * kCount + 31) / 32;

struct FloatCodes {
  static constexpr int kBits = 32;
  template <int kCount>
  __device__ static void Unpack(const uint32_t (&words)[kCount], float (&values)[kCount]) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] = FloatFromBits(words[j]);
  }
};

struct BFloat16Codes {
  static constexpr int kBits = 16;
  template <int kCount>
  __device__ static void Unpack(const uint32_t (&words)[kCount / 2], float (&values)[kCount]) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      values[j] = FloatFromBits(j % 2 == 0 ? words[j / 2] << 16 : words[j / 2] & 0xffff0000u);
    }
  }
};

struct Float16Codes {
  static constexpr int kBits = 16;
  template <int kCount>
  __device__ static void Unpack(const uint32_t (&words)[kCount / 2], float (&values)[kCount]) {
#pragma unroll
    for (int j = 0; j < kCount; j += 2) DecodeFloat16Pair(words[j / 2], values[j], values[j + 1]);
  }
};

template <typename Element>
struct Float8Codes {
  static constexpr int kBits = 8;
  template <int kCount>
  __device__ static void Unpack(const uint32_t (&words)[kCount / 4], float (&values)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      float quad[4];
      if constexpr (std::is_same_v<Element, E4M3>) {
        DecodeE4M3Quad(words[i], quad);
      } else {
        DecodeE5M2Quad(words[i], quad);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) values[4 * i + j] = quad[j];
    }
  }
};

struct Float4Codes {
  static constexpr int kBits = 4;
  template <int kCount>
  __device__ static void Unpack(const uint32_t (&words)[1], float (&values)[kCount]) {
    static_assert(kCount <= 8);
    float octet[8];
    DecodeE2M1Octet(words[0], octet);
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] = octet[j];
  }
};

// The scales of a plane. OfTensor() gives what all elements share, At() the scale of one element, and Apply() what a
// code's value stands for under both.
//
// kColumns: how many columns share a scale; 0 where all do. kRowsShare: whether the kGroups rows of a thread do.

__device__ float LoadFloat(const uint8_t* address) {
  float value;
  memcpy(&value, address, sizeof(value));
  return value;
}

struct NoScales {
  static constexpr int kColumns = 0;
  static constexpr bool kRowsShare = true;
  __device__ float OfTensor() const { return 1.0f; }
  __device__ float At(int64_t, int64_t) const { return 1.0f; }
  __device__ static float Apply(float value, float, float) { return value; }
};

struct TensorScale {
  static constexpr int kColumns = 0;
  static constexpr bool kRowsShare = true;
  __device__ float OfTensor() const { return LoadFloat(scale_inv); }
  __device__ float At(int64_t, int64_t) const { return 1.0f; }
  __device__ static float Apply(float value, float, float of_tensor) { return value * of_tensor; }

  const uint8_t* scale_inv;
};

// What the formats have in common whose scales serve blocks, and that have none of the tensor.
struct BlockScales {
  __device__ float OfTensor() const { return 1.0f; }
  __device__ static float Apply(float value, float scale, float) { return value * scale; }

  const uint8_t* scales;
  int64_t across;
};

struct Fp8BlockScales : BlockScales {
  static constexpr int kColumns = 128;
  static constexpr bool kRowsShare = true;
  __device__ float At(int64_t row, int64_t col) const {
    return LoadFloat(scales + (row / 128 * across + col / 128) * sizeof(float));
  }
};

// The row-wise plane of MXFP8, and MXFP8_2D.
struct Mxfp8RowScales : BlockScales {
  static constexpr int kColumns = 32;
  static constexpr bool kRowsShare = false;
  __device__ float At(int64_t row, int64_t col) const {
    return DecodeE8M0(scales[(row >> row_shift) * across + col / 32]);
  }

  int row_shift;  // log2 of the rows that share a scale
};

struct Mxfp8ColumnScales : BlockScales {
  static constexpr int kColumns = 1;
  static constexpr bool kRowsShare = true;
  __device__ float At(int64_t row, int64_t col) const { return DecodeE8M0(scales[row / 32 * across + col]); }
};

struct Nvfp4Scales {
  static constexpr int kColumns = 16;
  static constexpr bool kRowsShare = true;
  __device__ float OfTensor() const { return LoadFloat(amax); }
  __device__ float At(int64_t row, int64_t col) const { return E4M3::Decode(scales[row / 16 * across + col / 16]); }
  __device__ static float Apply(float value, float scale, float of_tensor) {
    return DecodeNvfp4(value, scale, of_tensor);
  }

  const uint8_t* scales;
  const uint8_t* amax;
  int64_t across;
};

// A plane as it is read: `pitch` codes to a row, padding included.
template <typename CodesType, typename ScalesType>
struct Source {
  using Codes = CodesType;
  using Scales = ScalesType;

  const uint8_t* data;
  int64_t pitch;
  Scales scales;
};

struct FloatOut {
  using Stored = float;
  __device__ static uint4 Pack(const float (&values)[4]) {
    return {FloatBits(CanonicalNan(values[0])), FloatBits(CanonicalNan(values[1])), FloatBits(CanonicalNan(values[2])),
            FloatBits(CanonicalNan(values[3]))};
  }
  __device__ static Stored Store(float value) { return CanonicalNan(value); }
};

struct BFloat16Out {
  using Stored = uint16_t;
  __device__ static uint4 Pack(const float (&values)[8]) {
    return {EncodeBFloat16Pair(values[0], values[1]), EncodeBFloat16Pair(values[2], values[3]),
            EncodeBFloat16Pair(values[4], values[5]), EncodeBFloat16Pair(values[6], values[7])};
  }
  __device__ static Stored Store(float value) { return static_cast<uint16_t>(EncodeBFloat16Pair(value, 0.0f)); }
};

// Elements that one thread stores at once, 16 bytes of them.
template <typename Out>
constexpr int kGroupOf = 16 / sizeof(typename Out::Stored);

template <int kBytes>
struct VectorOf;
template <>
struct VectorOf<2> {
  using Type = uint16_t;
};
template <>
struct VectorOf<4> {
  using Type = uint32_t;
};
template <>
struct VectorOf<8> {
  using Type = uint2;
};
template <>
struct VectorOf<16> {
  using Type = uint4;
};

// Reads the kCount codes from number `first` on, which begin at a multiple of their size.
template <int kBits, int kCount>
__device__ void ReadAligned(const uint8_t* data, int64_t first, uint32_t (&words)[kWordsOf<kBits, kCount>]) {
  constexpr int kBytes = kBits * kCount / 8;
  using Vector = typename VectorOf<(kBytes < 16 ? kBytes : 16)>::Type;
  Vector vectors[kBytes / sizeof(Vector)];
#pragma unroll
  for (int i = 0; i < static_cast<int>(kBytes / sizeof(Vector)); ++i) {
    vectors[i] = reinterpret_cast<const Vector*>(data + first * kBits / 8)[i];
  }
  words[kWordsOf<kBits, kCount> - 1] = 0;
  memcpy(words, vectors, kBytes);
}

// The same for codes that begin anywhere: the aligned words that hold some of them, shifted.
template <int kBits, int kCount>
__device__ void ReadShifted(const uint8_t* data, int64_t first, uint32_t (&words)[kWordsOf<kBits, kCount>]) {
  constexpr int kWords = kWordsOf<kBits, kCount>;
  const auto address = reinterpret_cast<uintptr_t>(data + first * kBits / 8);
  const auto* const aligned = reinterpret_cast<const uint32_t*>(address - address % 4);
  const uint32_t shift = address % 4 * 8 + (kBits == 4 ? first % 2 * 4 : 0);
  uint32_t word = aligned[0];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const bool goes_on = shift + kBits * kCount > 32 * (i + 1);
    const uint32_t next = goes_on ? aligned[i + 1] : 0;
    words[i] = __funnelshift_r(word, next, shift);
    word = next;
  }
}

// One code, in the low bits.
template <int kBits>
__device__ uint32_t ReadOne(const uint8_t* data, int64_t first) {
  const uint8_t* const source = data + first * kBits / 8;
  if constexpr (kBits == 4) return source[0] >> (first % 2 * 4) & 0xf;
  uint32_t code = 0;
#pragma unroll
  for (int i = 0; i < kBits / 8; ++i) code |= uint32_t{source[i]} << (8 * i);
  return code;
}

// The scales of the kCount elements from a place on, all in one row.
template <bool kAligned, typename Scales, int kCount>
__device__ void ReadScales(const Scales& scales, int64_t row, int64_t col, float (&out)[kCount]) {
  if constexpr (Scales::kColumns == 1) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) out[j] = scales.At(row, col + j);
    return;
  }
  const float first = scales.At(row, col);
  float last = first;
  int of_first = kCount;
  if constexpr (!kAligned && Scales::kColumns > 1) {
    last = scales.At(row, col + kCount - 1);
    of_first = Scales::kColumns - static_cast<int>(col % Scales::kColumns);
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) out[j] = j < of_first ? first : last;
}

template <typename Out, typename SourcePlane>
__device__ typename Out::Stored DecodeOne(const SourcePlane& source, int64_t row, int64_t col) {
  using Codes = typename SourcePlane::Codes;
  constexpr int kGroup = kGroupOf<Out>;
  uint32_t words[kWordsOf<Codes::kBits, kGroup>] = {ReadOne<Codes::kBits>(source.data, row * source.pitch + col)};
  float values[kGroup];
  Codes::Unpack(words, values);
  return Out::Store(source.scales.Apply(values[0], source.scales.At(row, col), source.scales.OfTensor()));
}

// Where stores of 16 bytes lie in a row: `head` elements come before the first of them, `tail` after the last.
struct RowEdges {
  template <typename Stored>
  __device__ RowEdges(const Stored* row, int64_t cols, bool is_aligned) {
    constexpr int kGroup = 16 / sizeof(Stored);
    const auto phase = is_aligned ? 0 : static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(Stored));
    head = static_cast<int>(min(int64_t{(kGroup - phase) % kGroup}, cols));
    tail = static_cast<int>((cols - head) % kGroup);
  }

  int head;
  int tail;
};

// Which groups a thread decodes. A block has a rectangle of them, or a part of one long row.
template <typename SourcePlane>
struct Walk {
  static constexpr bool kIsFlat = SourcePlane::Scales::kColumns == 0;

  // `across_log2`: log2 of the threads of a block that lie beside each other.
  __device__ Walk(uint32_t blocks_across, int across_log2) {
    const int64_t block_row = blockIdx.x / blocks_across;
    const int64_t block_col = blockIdx.x % blocks_across;
    begins_rows = block_col == 0;
    if (kIsFlat) {
      rows_of_block = 1;
      first_row_of_block = first_row = block_row;
      first_group = block_col * (kThreads * kGroups) + threadIdx.x;
    } else {
      rows_of_block = (kThreads >> across_log2) * kGroups;
      first_row_of_block = block_row * rows_of_block;
      first_row = first_row_of_block + static_cast<int64_t>(threadIdx.x >> across_log2) * kGroups;
      first_group = (block_col << across_log2) + (threadIdx.x & ((1 << across_log2) - 1));
    }
  }

  __device__ int64_t Row(int i) const { return kIsFlat ? first_row : first_row + i; }
  __device__ int64_t Group(int i) const { return kIsFlat ? first_group + i * kThreads : first_group; }

  bool begins_rows;
  int rows_of_block;
  int64_t first_row_of_block;
  int64_t first_row;
  int64_t first_group;
};

// Decodes what the stores of 16 bytes leave of a block's rows, an element a thread.
template <typename Out, bool kAligned, typename SourcePlane>
__device__ void DecodeEdges(const SourcePlane& source, const Walk<SourcePlane>& walk, int64_t rows, int64_t cols,
                            typename Out::Stored* out) {
  constexpr int kGroup = kGroupOf<Out>;
#pragma unroll 1
  for (int i = threadIdx.x; i < walk.rows_of_block * 2 * kGroup; i += kThreads) {
    const int64_t row = walk.first_row_of_block + i / (2 * kGroup);
    if (row >= rows) return;
    typename Out::Stored* const target = out + row * cols;
    const RowEdges edges(target, cols, kAligned);
    const int place = i % (2 * kGroup);
    const bool is_tail = place >= kGroup;
    if (place - (is_tail ? kGroup : 0) >= (is_tail ? edges.tail : edges.head)) continue;
    const int64_t col = is_tail ? cols - edges.tail + place - kGroup : place;
    target[col] = DecodeOne<Out>(source, row, col);
  }
}

// A group's stores are aligned to 16 bytes. kAligned: so is every row, and groups of codes are aligned to their size.
template <typename Out, bool kAligned, typename SourcePlane>
__global__ __launch_bounds__(kThreads) void DecodeKernel(const SourcePlane source, int64_t rows, int64_t cols,
                                                         uint32_t blocks_across, int across_log2,
                                                         typename Out::Stored* out) {
  using Codes = typename SourcePlane::Codes;
  using Scales = typename SourcePlane::Scales;
  constexpr int kGroup = kGroupOf<Out>;
  constexpr int kWords = kWordsOf<Codes::kBits, kGroup>;
  constexpr bool kScalesStay = kAligned && Scales::kRowsShare;
  const Walk<SourcePlane> walk(blocks_across, across_log2);
  const auto column = [&](int i) -> int64_t {
    const int64_t first = walk.Group(i) * kGroup;
    return kAligned ? first : first + RowEdges(out + walk.Row(i) * cols, cols, false).head;
  };
  const auto exists = [&](int i, int64_t col) { return walk.Row(i) < rows && col + kGroup <= cols; };

  uint32_t words[kGroups][kWords];
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const int64_t col = column(i);
    if (!exists(i, col)) continue;
    const int64_t first = walk.Row(i) * source.pitch + col;
    if constexpr (kAligned) {
      ReadAligned<Codes::kBits, kGroup>(source.data, first, words[i]);
    } else {
      ReadShifted<Codes::kBits, kGroup>(source.data, first, words[i]);
    }
  }
  const float of_tensor = source.scales.OfTensor();
  float scales[kGroup];
  if (kScalesStay && exists(0, column(0))) ReadScales<kAligned>(source.scales, walk.Row(0), column(0), scales);
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const int64_t row = walk.Row(i);
    const int64_t col = column(i);
    if (!exists(i, col)) continue;
    if (!kScalesStay) ReadScales<kAligned>(source.scales, row, col, scales);
    float values[kGroup];
    Codes::Unpack(words[i], values);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) values[j] = Scales::Apply(values[j], scales[j], of_tensor);
    *reinterpret_cast<uint4*>(out + row * cols + col) = Out::Pack(values);
  }
  if (walk.begins_rows && !(kAligned && cols % kGroup == 0)) DecodeEdges<Out, kAligned>(source, walk, rows, cols, out);
}

int64_t CeilDivide(int64_t size, int64_t step) { return (size + step - 1) / step; }

// Threads that lie beside each other: as many as a row has groups, up to a block of them.
int AcrossLog2(int64_t groups) {
  int log2 = 3;
  while ((1 << log2) < std::min<int64_t>(groups, kThreads)) ++log2;
  return log2;
}

template <typename Out, bool kAligned, typename SourcePlane>
void LaunchDecode(const SourcePlane& source, int64_t rows, int64_t cols, void* out, cudaStream_t stream) {
  constexpr int kGroup = kGroupOf<Out>;
  // A row without any has edges all the same.
  const int64_t groups = std::max<int64_t>(1, cols / kGroup);
  const int across_log2 = AcrossLog2(groups);
  const bool is_flat = Walk<SourcePlane>::kIsFlat;
  const int64_t across = CeilDivide(groups, is_flat ? kThreads * kGroups : 1 << across_log2);
  const int64_t down = is_flat ? rows : CeilDivide(rows, (kThreads >> across_log2) * kGroups);
  const auto blocks = static_cast<unsigned int>(across * down);
  DecodeKernel<Out, kAligned><<<blocks, kThreads, 0, stream>>>(source, rows, cols, static_cast<uint32_t>(across),
                                                               across_log2, static_cast<typename Out::Stored*>(out));
}

bool IsAligned(const void* address, size_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

template <typename Out, typename SourcePlane>
void Decode(const SourcePlane& source, int64_t rows, int64_t cols, void* out, cudaStream_t stream) {
  constexpr int kGroup = kGroupOf<Out>;
  constexpr size_t kGroupBytes = SourcePlane::Codes::kBits * kGroup / 8;
  const bool is_aligned = (rows == 1 || cols % kGroup == 0) && IsAligned(out, 16) &&
                          IsAligned(source.data, std::min<size_t>(kGroupBytes, 16));
  if (is_aligned) {
    LaunchDecode<Out, true>(source, rows, cols, out, stream);
  } else {
    LaunchDecode<Out, false>(source, rows, cols, out, stream);
  }
}

template <typename Out, typename Element>
void DecodeFloat8(const Encoding& encoding, Plane plane, ConstPlane encoded, int64_t rows, int64_t cols, void* out,
                  cudaStream_t stream) {
  using Codes = Float8Codes<Element>;
  const int64_t across = ScaleShape(encoding, plane, rows, cols).cols;
  const uint8_t* const scales = encoded.scales;
  switch (encoding.format) {
    case Format::kFP8Block128x128:
      return Decode<Out>(Source<Codes, Fp8BlockScales>{encoded.data, cols, {{scales, across}}}, rows, cols, out,
                         stream);
    case Format::kMXFP8:
      if (plane == Plane::kColumnWise) {
        const Mxfp8ColumnScales column_scales = {{scales, across}};
        return Decode<Out>(Source<Codes, Mxfp8ColumnScales>{encoded.data, cols, column_scales}, rows, cols, out,
                           stream);
      }
      return Decode<Out>(Source<Codes, Mxfp8RowScales>{encoded.data, cols, {{scales, across}, 0}}, rows, cols, out,
                         stream);
    case Format::kMXFP8_2D:
      return Decode<Out>(Source<Codes, Mxfp8RowScales>{encoded.data, cols, {{scales, across}, 5}}, rows, cols, out,
                         stream);
    case Format::kFP8TensorCurrent:
    case Format::kFP8TensorDelayed:
      return Decode<Out>(Source<Codes, TensorScale>{encoded.data, cols, {scales}}, 1, rows * cols, out, stream);
    case Format::kFP32:
    case Format::kBF16:
    case Format::kFP16:
    case Format::kNVFP4_2D:
      break;  // not FP8
  }
}

template <typename Out>
void DecodeInto(const Encoding& encoding, Plane plane, ConstPlane encoded, int64_t rows, int64_t cols, void* out,
                cudaStream_t stream) {
  const uint8_t* const data = encoded.data;
  switch (encoding.format) {
    case Format::kFP32:
      return Decode<Out>(Source<FloatCodes, NoScales>{data, cols, {}}, 1, rows * cols, out, stream);
    case Format::kBF16:
      return Decode<Out>(Source<BFloat16Codes, NoScales>{data, cols, {}}, 1, rows * cols, out, stream);
    case Format::kFP16:
      return Decode<Out>(Source<Float16Codes, NoScales>{data, cols, {}}, 1, rows * cols, out, stream);
    case Format::kNVFP4_2D: {
      const int64_t across = ScaleShape(encoding, plane, rows, cols).cols;
      const Nvfp4Scales scales = {encoded.scales, encoded.amax, across};
      return Decode<Out>(Source<Float4Codes, Nvfp4Scales>{data, (cols + 1) / 2 * 2, scales}, rows, cols, out, stream);
    }
    case Format::kFP8TensorCurrent:
    case Format::kFP8TensorDelayed:
    case Format::kFP8Block128x128:
    case Format::kMXFP8:
    case Format::kMXFP8_2D:
      if (encoding.element == ElementType::kE4M3) {
        return DecodeFloat8<Out, E4M3>(encoding, plane, encoded, rows, cols, out, stream);
      }
      return DecodeFloat8<Out, E5M2>(encoding, plane, encoded, rows, cols, out, stream);
  }
}

}  // namespace

absl::Status DecodePlane(const Encoding& encoding, Plane plane, ConstPlane encoded, int64_t rows, int64_t cols,
                         DecodedType type, void* out, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckEncodable(encoding));
  if (plane == Plane::kColumnWise && !HasColumnPlane(encoding.format)) {
    return absl::InvalidArgumentError(
        absl::StrCat("decode a plane: format ", FormatName(encoding.format), " has no column-wise plane"));
  }
  if (rows * cols == 0) return absl::OkStatus();
  if (type == DecodedType::kFP32) {
    DecodeInto<FloatOut>(encoding, plane, encoded, rows, cols, out, stream);
  } else {
    DecodeInto<BFloat16Out>(encoding, plane, encoded, rows, cols, out, stream);
  }
  return LaunchStatus("decode a plane");
}

}  // namespace paramshard::gpu
