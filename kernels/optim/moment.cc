#include "kernels/optim/moment.h"

#include <algorithm>

#include "kernels/base/float_bits.h"
#include "kernels/base/simd_clones.h"
#include "kernels/formats/unscaled.h"
#include "kernels/formats/window.h"
#include "kernels/optim/moment_math.h"

namespace paramshard {
namespace {

int64_t BlocksIn(int64_t cols) { return (cols + kMomentBlockSize - 1) / kMomentBlockSize; }

template <typename Moment, bool kRoot>
PARAMSHARD_ALWAYS_INLINE void EncodeBlock(const float* __restrict values, int64_t count,
                                          typename Moment::Stored* __restrict codes, float* scale_inv) {
  float to_store[kMomentBlockSize];
  for (int64_t i = 0; i < count; ++i) to_store[i] = MomentToStore<kRoot>(values[i]);
  const float scale = MomentScaleInv(FloatFromBits(LargestAmaxBits(to_store, count)), Moment::kMax);
  for (int64_t i = 0; i < count; ++i) codes[i] = EncodeBlockMoment<Moment>(to_store[i], scale);
  *scale_inv = scale;
}

template <typename Moment, bool kRoot>
PARAMSHARD_ALWAYS_INLINE void EncodeRows(const float* values, int64_t rows, int64_t cols, const MutableMoment& moment) {
  auto* codes = static_cast<typename Moment::Stored*>(moment.data);
  float* scales = moment.scales;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; col += kMomentBlockSize) {
      const int64_t first = row * cols + col;
      EncodeBlock<Moment, kRoot>(values + first, std::min(kMomentBlockSize, cols - col), codes + first, scales++);
    }
  }
}

template <typename Moment, bool kRoot>
PARAMSHARD_ALWAYS_INLINE void DecodeBlock(const typename Moment::Stored* __restrict codes, int64_t count,
                                          float scale_inv, float* __restrict values) {
  for (int64_t i = 0; i < count; ++i) values[i] = CanonicalNan(DecodeBlockMoment<Moment, kRoot>(codes[i], scale_inv));
}

template <typename Moment, bool kRoot>
PARAMSHARD_ALWAYS_INLINE void DecodeRows(const ConstMoment& moment, int64_t rows, int64_t cols, float* values) {
  const auto* codes = static_cast<const typename Moment::Stored*>(moment.data);
  const float* scales = moment.scales;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; col += kMomentBlockSize) {
      const int64_t first = row * cols + col;
      DecodeBlock<Moment, kRoot>(codes + first, std::min(kMomentBlockSize, cols - col), *scales++, values + first);
    }
  }
}

PARAMSHARD_SIMD_CLONES
void EncodeFloat16Blocks(MomentKind kind, const float* values, int64_t rows, int64_t cols,
                         const MutableMoment& moment) {
  if (TraitsOf(kind).is_square) return EncodeRows<Float16Moment, true>(values, rows, cols, moment);
  EncodeRows<Float16Moment, false>(values, rows, cols, moment);
}

PARAMSHARD_SIMD_CLONES
void EncodeFloat8Blocks(MomentKind kind, const float* values, int64_t rows, int64_t cols, const MutableMoment& moment) {
  if (TraitsOf(kind).is_square) return EncodeRows<Float8Moment, true>(values, rows, cols, moment);
  EncodeRows<Float8Moment, false>(values, rows, cols, moment);
}

PARAMSHARD_SIMD_CLONES
void DecodeFloat16Blocks(MomentKind kind, const ConstMoment& moment, int64_t rows, int64_t cols, float* values) {
  if (TraitsOf(kind).is_square) return DecodeRows<Float16Moment, true>(moment, rows, cols, values);
  DecodeRows<Float16Moment, false>(moment, rows, cols, values);
}

PARAMSHARD_SIMD_CLONES
void DecodeFloat8Blocks(MomentKind kind, const ConstMoment& moment, int64_t rows, int64_t cols, float* values) {
  if (TraitsOf(kind).is_square) return DecodeRows<Float8Moment, true>(moment, rows, cols, values);
  DecodeRows<Float8Moment, false>(moment, rows, cols, values);
}

}  // namespace

absl::string_view MomentTypeName(MomentType type) {
  switch (type) {
    case MomentType::kFP32:
      return "FP32";
    case MomentType::kBF16:
      return "BF16";
    case MomentType::kFP16:
      return "FP16";
    case MomentType::kFP8:
      return "FP8";
  }
  return "unknown";
}

int64_t MomentScaleCount(MomentType type, int64_t rows, int64_t cols) {
  return HasMomentScales(type) ? rows * BlocksIn(cols) : 0;
}

MutableMoment MomentAt(const MutableMoment& moment, int64_t cols, int64_t row, int64_t col) {
  uint8_t* data = static_cast<uint8_t*>(moment.data) + (row * cols + col) * MomentBytes(moment.type);
  if (!HasMomentScales(moment.type)) return {data, nullptr, moment.type};
  return {data, moment.scales + row * BlocksIn(cols) + col / kMomentBlockSize, moment.type};
}

void EncodeMoment(MomentKind kind, const float* values, int64_t rows, int64_t cols, const MutableMoment& moment) {
  switch (moment.type) {
    case MomentType::kFP32:
      return EncodeFloats(values, rows * cols, static_cast<uint8_t*>(moment.data));
    case MomentType::kBF16:
      return EncodeBFloat16s(values, rows * cols, static_cast<uint8_t*>(moment.data));
    case MomentType::kFP16:
      return EncodeFloat16Blocks(kind, values, rows, cols, moment);
    case MomentType::kFP8:
      return EncodeFloat8Blocks(kind, values, rows, cols, moment);
  }
}

void DecodeMoment(MomentKind kind, const ConstMoment& moment, int64_t rows, int64_t cols, float* values) {
  switch (moment.type) {
    case MomentType::kFP32:
      return DecodeFloats(static_cast<const uint8_t*>(moment.data), rows * cols, values);
    case MomentType::kBF16:
      return DecodeBFloat16s(static_cast<const uint8_t*>(moment.data), rows * cols, values);
    case MomentType::kFP16:
      return DecodeFloat16Blocks(kind, moment, rows, cols, values);
    case MomentType::kFP8:
      return DecodeFloat8Blocks(kind, moment, rows, cols, values);
  }
}

}  // namespace paramshard
