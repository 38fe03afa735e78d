#include "kernels/formats/codec_cuda.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/float_bits.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/float16.h"
#include "kernels/formats/float4.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/scale_math.h"
#include "kernels/gpu/status.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreads = 256;

template <int kBytes>
struct WordOf;
template <>
struct WordOf<4> {
  using Type = uint32_t;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};

// Reads `kCount` codes at once; one may lie anywhere.
template <typename Code, int kCount>
__device__ void ReadCodes(const uint8_t* source, Code (&codes)[kCount]) {
  if constexpr (kCount == 1) {
    memcpy(codes, source, sizeof(Code));
  } else {
    using Word = typename WordOf<sizeof(codes)>::Type;
    const Word word = *reinterpret_cast<const Word*>(source);
    memcpy(codes, &word, sizeof(codes));
  }
}

// How the elements of a plane are read: codes, and the value of each.

// Codes that fill whole bytes.
template <typename CodeType>
struct BytePlane {
  using Code = CodeType;

  template <int kCount>
  __device__ void Read(int64_t row, int64_t col, int64_t cols, Code (&codes)[kCount]) const {
    ReadCodes(data + (row * cols + col) * sizeof(Code), codes);
  }

  const uint8_t* data;
};

struct FloatPlane : BytePlane<uint32_t> {
  __device__ float Decode(Code code, int64_t, int64_t) const { return CanonicalNan(FloatFromBits(code)); }
};

struct BFloat16Plane : BytePlane<uint16_t> {
  __device__ float Decode(Code code, int64_t, int64_t) const { return CanonicalNan(DecodeBFloat16(code)); }
};

struct Float16Plane : BytePlane<uint16_t> {
  __device__ float Decode(Code code, int64_t, int64_t) const { return CanonicalNan(DecodeFloat16(code)); }
};

__device__ float LoadFloat(const uint8_t* address) {
  float value;
  memcpy(&value, address, sizeof(value));
  return value;
}

template <typename Element>
struct Fp8TensorPlane : BytePlane<uint8_t> {
  const uint8_t* scales;

  __device__ float Decode(Code code, int64_t, int64_t) const {
    return CanonicalNan(Element::Decode(code) * LoadFloat(scales));
  }
};

template <typename Element>
struct Fp8BlockPlane : BytePlane<uint8_t> {
  const uint8_t* scales;
  int64_t blocks_across;

  __device__ float Decode(Code code, int64_t row, int64_t col) const {
    const float scale_inv = LoadFloat(scales + (row / 128 * blocks_across + col / 128) * sizeof(float));
    return CanonicalNan(Element::Decode(code) * scale_inv);
  }
};

template <typename Element>
struct Mxfp8Plane : BytePlane<uint8_t> {
  const uint8_t* scales;
  int64_t scales_across;
  // Log2 of how many rows and columns one scale serves.
  int row_shift;
  int col_shift;

  __device__ float Decode(Code code, int64_t row, int64_t col) const {
    const uint8_t scale = scales[(row >> row_shift) * scales_across + (col >> col_shift)];
    return CanonicalNan(Element::Decode(code) * DecodeE8M0(scale));
  }
};

// Two codes to a byte, and rows that begin with a byte of their own.
struct Nvfp4Plane {
  using Code = uint8_t;
  const uint8_t* data;
  const uint8_t* scales;
  const uint8_t* amax;
  int64_t blocks_across;

  template <int kCount>
  __device__ void Read(int64_t row, int64_t col, int64_t cols, Code (&codes)[kCount]) const {
    const uint8_t* const first = data + row * ((cols + 1) / 2) + col / 2;
    if constexpr (kCount == 1) {
      codes[0] = first[0] >> (col % 2 * 4) & 0xf;
    } else {
      const uint32_t pairs = *reinterpret_cast<const uint16_t*>(first);
#pragma unroll
      for (int j = 0; j < kCount; ++j) codes[j] = static_cast<uint8_t>(pairs >> (4 * j) & 0xf);
    }
  }

  __device__ float Decode(Code code, int64_t row, int64_t col) const {
    const float block_scale = E4M3::Decode(scales[row / 16 * blocks_across + col / 16]);
    return CanonicalNan(DecodeNvfp4(E2M1::Decode(code), block_scale, LoadFloat(amax)));
  }
};

struct FloatOut {
  using Stored = float;
  __device__ static Stored Store(float value) { return value; }
};

struct BFloat16Out {
  using Stored = uint16_t;
  __device__ static Stored Store(float value) { return EncodeBFloat16(value); }
};

// Elements of a row that a block decodes.
constexpr int kGroupsPerThread = 4;
constexpr int64_t kMostRows = 1 << 15;

// Every thread decodes groups of `kGroup` elements, which lie in one row.
template <typename Out, int kGroup, typename SourcePlane>
__global__ __launch_bounds__(kThreads) void DecodeKernel(SourcePlane plane, int64_t rows, int64_t cols,
                                                         typename Out::Stored* out) {
  using Code = typename SourcePlane::Code;
  struct alignas(kGroup * sizeof(typename Out::Stored)) Group {
    typename Out::Stored values[kGroup];
  };
  const int64_t first_col = (int64_t{blockIdx.x} * kThreads * kGroupsPerThread + threadIdx.x) * kGroup;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const int64_t first = row * cols;
    Code codes[kGroupsPerThread][kGroup];
#pragma unroll
    for (int i = 0; i < kGroupsPerThread; ++i) {
      const int64_t col = first_col + i * kThreads * kGroup;
      if (col < cols) plane.Read(row, col, cols, codes[i]);
    }
#pragma unroll
    for (int i = 0; i < kGroupsPerThread; ++i) {
      const int64_t col = first_col + i * kThreads * kGroup;
      if (col >= cols) break;
      Group group;
#pragma unroll
      for (int j = 0; j < kGroup; ++j) group.values[j] = Out::Store(plane.Decode(codes[i][j], row, col + j));
      *reinterpret_cast<Group*>(out + first + col) = group;
    }
  }
}

template <typename Out, int kGroup, typename SourcePlane>
void LaunchDecode(const SourcePlane& plane, int64_t rows, int64_t cols, void* out, cudaStream_t stream) {
  constexpr int64_t kBlockCols = kThreads * kGroupsPerThread * kGroup;
  const dim3 blocks(static_cast<unsigned int>((cols + kBlockCols - 1) / kBlockCols),
                    static_cast<unsigned int>(std::min(kMostRows, rows)));
  DecodeKernel<Out, kGroup>
      <<<blocks, kThreads, 0, stream>>>(plane, rows, cols, static_cast<typename Out::Stored*>(out));
}

bool IsAligned(const void* address, size_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

template <typename Out, typename SourcePlane>
void Decode(const SourcePlane& plane, int64_t rows, int64_t cols, void* out, cudaStream_t stream) {
  constexpr int kQuad = 4;
  const bool quads = cols % kQuad == 0 && IsAligned(plane.data, kQuad * sizeof(typename SourcePlane::Code)) &&
                     IsAligned(out, kQuad * sizeof(typename Out::Stored));
  if (quads) {
    LaunchDecode<Out, kQuad>(plane, rows, cols, out, stream);
  } else {
    LaunchDecode<Out, 1>(plane, rows, cols, out, stream);
  }
}

template <typename Out, typename Element>
void DecodeFloat8(const Encoding& encoding, Plane plane, ConstPlane encoded, int64_t rows, int64_t cols, void* out,
                  cudaStream_t stream) {
  const int64_t across = ScaleShape(encoding, plane, rows, cols).cols;
  switch (encoding.format) {
    case Format::kFP8Block128x128:
      return Decode<Out>(Fp8BlockPlane<Element>{{encoded.data}, encoded.scales, across}, rows, cols, out, stream);
    case Format::kMXFP8:
    case Format::kMXFP8_2D: {
      const bool is_square = encoding.format == Format::kMXFP8_2D;
      const int row_shift = is_square || plane == Plane::kColumnWise ? 5 : 0;
      const int col_shift = is_square || plane == Plane::kRowWise ? 5 : 0;
      const Mxfp8Plane<Element> source = {{encoded.data}, encoded.scales, across, row_shift, col_shift};
      return Decode<Out>(source, rows, cols, out, stream);
    }
    default:
      return Decode<Out>(Fp8TensorPlane<Element>{{encoded.data}, encoded.scales}, 1, rows * cols, out, stream);
  }
}

template <typename Out>
void DecodeInto(const Encoding& encoding, Plane plane, ConstPlane encoded, int64_t rows, int64_t cols, void* out,
                cudaStream_t stream) {
  switch (encoding.format) {
    case Format::kFP32:
      return Decode<Out>(FloatPlane{{encoded.data}}, 1, rows * cols, out, stream);
    case Format::kBF16:
      return Decode<Out>(BFloat16Plane{{encoded.data}}, 1, rows * cols, out, stream);
    case Format::kFP16:
      return Decode<Out>(Float16Plane{{encoded.data}}, 1, rows * cols, out, stream);
    case Format::kNVFP4_2D: {
      const int64_t across = ScaleShape(encoding, plane, rows, cols).cols;
      return Decode<Out>(Nvfp4Plane{encoded.data, encoded.scales, encoded.amax, across}, rows, cols, out, stream);
    }
    default:
      if (encoding.element == ElementType::kE4M3) {
        return DecodeFloat8<Out, E4M3>(encoding, plane, encoded, rows, cols, out, stream);
      }
      return DecodeFloat8<Out, E5M2>(encoding, plane, encoded, rows, cols, out, stream);
  }
}

// A block transposes a square of this many rows and columns, through shared memory.
constexpr int kSquare = 64;

// Four bytes at an address that is aligned to them, or anywhere.
template <bool kAligned>
__device__ uint32_t LoadWord(const uint8_t* source) {
  uint32_t word;
  if (kAligned) {
    word = *reinterpret_cast<const uint32_t*>(source);
  } else {
    memcpy(&word, source, sizeof(word));
  }
  return word;
}

template <bool kAligned>
__device__ void StoreWord(uint8_t* target, uint32_t word) {
  if (kAligned) {
    *reinterpret_cast<uint32_t*>(target) = word;
  } else {
    memcpy(target, &word, sizeof(word));
  }
}

// kAligned: rows of `data` and of `out` begin at multiples of 4 bytes.
template <bool kAligned>
__global__ __launch_bounds__(kThreads) void TransposeKernel(const uint8_t* data, int64_t rows, int64_t cols,
                                                            int64_t squares_across, uint8_t* out) {
  constexpr int kWords = kSquare / 4;
  __shared__ uint32_t square[kSquare][kWords + 1];
  const int64_t first_row = blockIdx.x / squares_across * kSquare;
  const int64_t first_col = blockIdx.x % squares_across * kSquare;
  for (int i = threadIdx.x; i < kSquare * kWords; i += kThreads) {
    const int64_t row = first_row + i / kWords;
    const int64_t col = first_col + i % kWords * 4;
    uint32_t word = 0;
    if (row < rows && col + 4 <= cols) {
      word = LoadWord<kAligned>(data + row * cols + col);
    } else if (row < rows) {
      for (int64_t j = 0; col + j < cols; ++j) word |= uint32_t{data[row * cols + col + j]} << (8 * j);
    }
    square[i / kWords][i % kWords] = word;
  }
  __syncthreads();
  const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(square);
  for (int i = threadIdx.x; i < kSquare * kWords; i += kThreads) {
    const int out_row = i / kWords;
    const int out_word = i % kWords;
    uint32_t word = 0;
    for (int j = 0; j < 4; ++j) {
      word |= uint32_t{bytes[(out_word * 4 + j) * sizeof(square[0]) + out_row]} << (8 * j);
    }
    const int64_t row = first_col + out_row;
    const int64_t col = first_row + out_word * 4;
    if (row < cols && col + 4 <= rows) {
      StoreWord<kAligned>(out + row * rows + col, word);
    } else if (row < cols) {
      for (int64_t j = 0; col + j < rows; ++j) out[row * rows + col + j] = static_cast<uint8_t>(word >> (8 * j));
    }
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

absl::Status TransposeBytes(const uint8_t* data, int64_t rows, int64_t cols, uint8_t* out, cudaStream_t stream) {
  if (rows * cols == 0) return absl::OkStatus();
  const int64_t across = (cols + kSquare - 1) / kSquare;
  const auto blocks = static_cast<unsigned int>((rows + kSquare - 1) / kSquare * across);
  if (cols % 4 == 0 && rows % 4 == 0 && IsAligned(data, 4) && IsAligned(out, 4)) {
    TransposeKernel<true><<<blocks, kThreads, 0, stream>>>(data, rows, cols, across, out);
  } else {
    TransposeKernel<false><<<blocks, kThreads, 0, stream>>>(data, rows, cols, across, out);
  }
  return LaunchStatus("transpose bytes");
}

}  // namespace paramshard::gpu
