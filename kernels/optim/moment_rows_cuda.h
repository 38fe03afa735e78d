// Moments of each type on a GPU: a thread's four elements of a row, in shared memory and back to global memory.
//
// A block of 128 elements is what a warp has of a row, so that its amax is one reduction in the warp. The bytes are
// those of moment_math.h; where its division and its root would leave the fast path of their instructions for no need,
// the sequences of adam_math_cuda.h give the same results without.
//
// Internal to kernels/, for CUDA sources.

#ifndef PARAMSHARD_KERNELS_OPTIM_MOMENT_ROWS_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_MOMENT_ROWS_CUDA_H_

#include <cstdint>
#include <type_traits>

#include "kernels/formats/bfloat16.h"
#include "kernels/formats/packed_casts_cuda.h"
#include "kernels/optim/adam_kernels.h"
#include "kernels/optim/adam_math_cuda.h"
#include "kernels/optim/moment.h"
#include "kernels/optim/moment_math.h"
#include "kernels/optim/tile_memory_cuda.h"

namespace paramshard::gpu {

// The types' casts, four elements at a time.
template <AdamMoments kType>
struct MomentCasts;

template <>
struct MomentCasts<AdamMoments::kFP32> {
  using Stored = float;
  __device__ static void Decode(const Quad<Stored>& stored, float (&values)[kQuad]) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) values[j] = stored.values[j];
  }
  __device__ static Quad<Stored> Encode(const float (&values)[kQuad]) {
    return {{values[0], values[1], values[2], values[3]}};
  }
};

template <>
struct MomentCasts<AdamMoments::kBF16> {
  using Stored = uint16_t;
  __device__ static void Decode(const Quad<Stored>& stored, float (&values)[kQuad]) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) values[j] = DecodeBFloat16(stored.values[j]);
  }
  __device__ static Quad<Stored> Encode(const float (&values)[kQuad]) { return EncodeBFloat16Quad(values); }
};

template <>
struct MomentCasts<AdamMoments::kFP16> {
  using Stored = uint16_t;
  static constexpr float kMax = kFloat16Max;
  __device__ static void Decode(const Quad<Stored>& stored, float (&values)[kQuad]) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) values[j] = DecodeFloat16Value(stored.values[j]);
  }
  __device__ static Quad<Stored> Encode(const float (&values)[kQuad]) {
    const uint32_t pairs[] = {EncodeFloat16PairSaturating(values[0], values[1]),
                              EncodeFloat16PairSaturating(values[2], values[3])};
    Quad<Stored> quad;
    memcpy(quad.values, pairs, sizeof(pairs));
    return quad;
  }
};

template <>
struct MomentCasts<AdamMoments::kFP8> {
  using Stored = uint8_t;
  static constexpr float kMax = E4M3::kMax;
  __device__ static void Decode(const Quad<Stored>& stored, float (&values)[kQuad]) {
    uint32_t codes;
    memcpy(&codes, stored.values, sizeof(codes));
    DecodeE4M3Quad(codes, values);
  }
  __device__ static Quad<Stored> Encode(const float (&values)[kQuad]) {
    return CodeQuad(EncodeFloat8Quad<E4M3>(values[0], values[1], values[2], values[3]));
  }
};

// sqrtf() of each.
__device__ __forceinline__ void TakeRoots(float (&values)[kQuad]) {
  uint32_t from_ordinary = 0;
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    from_ordinary = max(from_ordinary, ExpAvgSqFromOrdinary(values[j]));
    largest = max(largest, FloatBits(values[j]));
  }
  if (from_ordinary < (kEndExpAvgSqExponent - kMinExpAvgSqExponent) << 23) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) values[j] = Root(values[j], ApproximateReciprocalRoot(values[j]));
  } else if (largest < kEndExpAvgSqExponent << 23) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) values[j] = SmallRoot(values[j]);
  } else {
    // Infinities, NaN and negative values, -0 among them.
#pragma unroll
    for (int j = 0; j < kQuad; ++j) values[j] = sqrtf(values[j]);
  }
}

// Divides by the scale of a block whose amax is `amax`. With ordinary scales the quotients are exact down to 2^-36, and
// what is smaller becomes a zero of its sign in either type.
__device__ __forceinline__ void DivideByScale(float amax, float scale_inv, float (&values)[kQuad]) {
  const bool ordinary = amax == 0.0f || (amax < 0x1p80f && scale_inv >= 0x1p-64f && scale_inv < 0x1p64f);
  if (!ordinary) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) values[j] = values[j] / scale_inv;
    return;
  }
  const float approximate = ApproximateReciprocal(scale_inv);
  const float reciprocal = fmaf(fmaf(-scale_inv, approximate, 1.0f), approximate, approximate);
#pragma unroll
  for (int j = 0; j < kQuad; ++j) values[j] = Divide(values[j], scale_inv, reciprocal);
}

// MomentScaleInv() without the branches of its division.
template <typename Casts>
__device__ __forceinline__ float BlockScaleInv(float amax) {
  if (amax == 0.0f) return 1.0f;
  if (amax >= 0x1p-90f && amax < 0x1p90f) return Divide(amax, Casts::kMax, 1.0f / Casts::kMax);
  return MomentScaleInv(amax, Casts::kMax);
}

// One moment of an extent. kRoot: exp_avg_sq.
template <typename Access, AdamMoments kType, bool kRoot>
class MomentRows {
 public:
  using Casts = MomentCasts<kType>;
  using Stored = typename Casts::Stored;

  static constexpr bool kHasScales = kType == AdamMoments::kFP16 || kType == AdamMoments::kFP8;
  // A thread has its own copy of its block's scale.
  static constexpr int kSlotBytes = Access::template kRowBytes<Stored> + (kHasScales ? kThreads * 4 : 0);

  explicit __device__ MomentRows(const MutableMoment& moment)
      : data_(static_cast<Stored*>(moment.data)), scales_(moment.scales) {}

  // Copies a row into its slot.
  __device__ void Fetch(int64_t index, int64_t block, uint32_t valid, uint8_t* slot) const {
    Access::Fetch(data_, index, valid, slot);
    if constexpr (kHasScales) CopyAsync<4>(ScaleIn(slot), scales_ + block, valid != 0 ? 4 : 0);
  }

  __device__ void Read(int64_t index, const uint8_t* slot, float (&values)[kQuad]) const {
    Casts::Decode(Access::Read(data_, index, slot), values);
    if constexpr (kHasScales) {
      const float scale_inv = *ScaleIn(slot);
#pragma unroll
      for (int j = 0; j < kQuad; ++j) values[j] = MomentFromStored<kRoot>(values[j] * scale_inv);
    }
  }

  // All lanes of the warp call it.
  __device__ void Store(const float (&values)[kQuad], int64_t index, int64_t block, uint32_t valid) const {
    if constexpr (kHasScales) {
      float to_store[kQuad] = {values[0], values[1], values[2], values[3]};
      if constexpr (kRoot) TakeRoots(to_store);
      float amax = 0.0f;
#pragma unroll
      for (int j = 0; j < kQuad; ++j) amax = fmaxf(amax, fabsf(to_store[j]));
      amax = FloatFromBits(__reduce_max_sync(~0u, FloatBits(amax)));
      const float scale_inv = BlockScaleInv<Casts>(amax);
      DivideByScale(amax, scale_inv, to_store);
      Access::Store(Casts::Encode(to_store), index, valid, data_);
      if (Lane() == 0) StoreGlobal(scale_inv, scales_ + block);
    } else {
      Access::Store(Casts::Encode(values), index, valid, data_);
    }
  }

 private:
  template <typename Byte>
  __device__ static auto ScaleIn(Byte* slot) {
    using Float = std::conditional_t<std::is_const_v<Byte>, const float, float>;
    return reinterpret_cast<Float*>(slot + Access::template kRowBytes<Stored>) + threadIdx.x;
  }

  Stored* data_;
  float* scales_;
};

// One whose type is known when the kernel runs. The same for all threads.
template <typename Access, bool kRoot>
class MomentRows<Access, AdamMoments::kAny, kRoot> {
 public:
  static constexpr bool kHasScales = true;
  static constexpr int kSlotBytes = Access::template kRowBytes<float> + kThreads * 4;

  explicit __device__ MomentRows(const MutableMoment& moment) : moment_(moment) {}

  __device__ void Fetch(int64_t index, int64_t block, uint32_t valid, uint8_t* slot) const {
    WithType([&](const auto& rows) { rows.Fetch(index, block, valid, slot); });
  }
  __device__ void Read(int64_t index, const uint8_t* slot, float (&values)[kQuad]) const {
    WithType([&](const auto& rows) { rows.Read(index, slot, values); });
  }
  __device__ void Store(const float (&values)[kQuad], int64_t index, int64_t block, uint32_t valid) const {
    WithType([&](const auto& rows) { rows.Store(values, index, block, valid); });
  }

 private:
  template <typename Function>
  __device__ void WithType(const Function& function) const {
    switch (moment_.type) {
      case MomentType::kFP32:
        return function(MomentRows<Access, AdamMoments::kFP32, kRoot>(moment_));
      case MomentType::kBF16:
        return function(MomentRows<Access, AdamMoments::kBF16, kRoot>(moment_));
      case MomentType::kFP16:
        return function(MomentRows<Access, AdamMoments::kFP16, kRoot>(moment_));
      case MomentType::kFP8:
        return function(MomentRows<Access, AdamMoments::kFP8, kRoot>(moment_));
    }
  }

  const MutableMoment& moment_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_MOMENT_ROWS_CUDA_H_
