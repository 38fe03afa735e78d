// Parts of an encoded plane for the GPU kernels that decode it: codes, scales, and the decoded types.
//
// Internal to kernels/, for CUDA sources.

#ifndef PARAMSHARD_KERNELS_FORMATS_ENCODED_PLANE_CUDA_H_
#define PARAMSHARD_KERNELS_FORMATS_ENCODED_PLANE_CUDA_H_

#include <cstdint>
#include <type_traits>

#include "kernels/base/float_bits.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/packed_casts_cuda.h"
#include "kernels/formats/scale_math.h"
#include "kernels/gpu/global_memory.h"

namespace paramshard::gpu {

// Codes and their values. Unpack() takes the codes of a group as words, the first code in the lowest bits; any NaN code
// gives a NaN.

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
    vectors[i] = LoadGlobal<Vector>(data + (first * kBits >> 3) + i * sizeof(Vector));
  }
  words[kWordsOf<kBits, kCount> - 1] = 0;
  memcpy(words, vectors, kBytes);
}

// Reads the aligned words that hold `count` codes from number `first` on, and returns the bit where the codes begin. If
// fewer words hold them, the last words are undefined.
template <int kBits, int kWindow>
__device__ uint32_t ReadWindow(const uint8_t* data, int64_t first, int count, uint32_t (&window)[kWindow]) {
  const auto address = reinterpret_cast<uintptr_t>(data + (first * kBits >> 3));
  const auto* const aligned = reinterpret_cast<const uint32_t*>(address - address % 4);
  const uint32_t shift = address % 4 * 8 + (kBits == 4 ? (first & 1) * 4 : 0);
#pragma unroll
  for (int i = 0; i < kWindow; ++i) {
    // Loads without a condition: for a word that is either loaded or set, the compiler would wait for earlier loads.
    const bool goes_on = i == 0 || shift + kBits * count > 32 * i;
    window[i] = LoadGlobal<uint32_t>(aligned + (goes_on ? i : 0));
  }
  return shift;
}

// The codes from number `first` on, which begin anywhere.
template <int kBits, int kCount>
__device__ void ReadShifted(const uint8_t* data, int64_t first, uint32_t (&words)[kWordsOf<kBits, kCount>]) {
  constexpr int kWords = kWordsOf<kBits, kCount>;
  uint32_t window[kWords + 1];
  const uint32_t shift = ReadWindow<kBits>(data, first, kCount, window);
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = __funnelshift_r(window[i], window[i + 1], shift);
}

// Four bytes anywhere.
__device__ inline uint32_t ReadWord(const uint8_t* address) {
  uint32_t words[1];
  ReadShifted<32, 1>(address, 0, words);
  return words[0];
}

// The scales of a plane. OfTensor() returns the scale that all elements share, Index() the number of an element's own
// scale, Read() its code, and Decode() the code's value. Apply() scales an element's value by both.
//
// kColumns: the number of columns that share a scale; 0 if all elements do. kRows: the number of rows.

struct NoScales {
  static constexpr int kColumns = 0;
  __device__ float OfTensor() const { return 1.0f; }
  __device__ static int64_t Index(int64_t, int64_t) { return 0; }
  __device__ static uint32_t Read(int64_t) { return 0; }
  __device__ static float Decode(uint32_t) { return 1.0f; }
  __device__ static float Apply(float value, float, float) { return value; }
};

struct TensorScale : NoScales {
  __device__ float OfTensor() const { return FloatFromBits(ReadWord(scale_inv)); }
  __device__ static float Apply(float value, float, float of_tensor) { return value * of_tensor; }

  const uint8_t* scale_inv;
};

// Scales of formats with one scale per block of rows x columns and none for the whole tensor.
template <int kRowsLog2, int kColumnsOfBlock>
struct BlockScales {
  static constexpr int kColumns = kColumnsOfBlock;
  static constexpr int kRows = 1 << kRowsLog2;
  __device__ int64_t Index(int64_t row, int64_t col) const { return (row >> kRowsLog2) * across + col / kColumns; }
  __device__ uint32_t Read(int64_t index) const { return LoadGlobal<uint8_t>(scales + index); }

  const uint8_t* scales;
  int64_t across;
};

struct Fp8BlockScales : BlockScales<7, 128> {
  __device__ float OfTensor() const { return 1.0f; }
  __device__ uint32_t Read(int64_t index) const { return ReadWord(scales + index * sizeof(float)); }
  __device__ static float Decode(uint32_t code) { return FloatFromBits(code); }
  __device__ static float Apply(float value, float scale, float) { return value * scale; }
};

// MXFP8: 1 x 32 along rows, 32 x 1 along columns. MXFP8_2D: 32 x 32.
template <int kRowsLog2, int kColumnsOfBlock>
struct Mxfp8Scales : BlockScales<kRowsLog2, kColumnsOfBlock> {
  __device__ float OfTensor() const { return 1.0f; }
  __device__ static float Decode(uint32_t code) { return DecodeE8M0Code(code); }
  __device__ static float Apply(float value, float scale, float) { return value * scale; }
};

struct Nvfp4Scales : BlockScales<4, 16> {
  __device__ float OfTensor() const { return Nvfp4DecodeAmax(FloatFromBits(ReadWord(amax))); }
  __device__ static float Decode(uint32_t code) { return DecodeE4M3Code(code); }
  __device__ static float Apply(float value, float scale, float of_tensor) {
    return DecodeNvfp4(value, scale, of_tensor);
  }

  const uint8_t* amax;
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

// One code, in the low bits.
template <int kBits>
__device__ uint32_t ReadOne(const uint8_t* data, int64_t first) {
  const uint8_t* const source = data + (first * kBits >> 3);
  if constexpr (kBits == 4) return source[0] >> ((first & 1) * 4) & 0xf;
  uint32_t code = 0;
#pragma unroll
  for (int i = 0; i < kBits / 8; ++i) code |= uint32_t{source[i]} << (8 * i);
  return code;
}

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_FORMATS_ENCODED_PLANE_CUDA_H_
