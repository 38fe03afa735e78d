// Moments of each type on a GPU: a thread's four elements of a row, in shared memory and back to global memory.
//
// A block of 128 elements is a warp's part of a row, so its amax is one reduction in the warp, and the scale of the
// warp's r-th row stays with lane r. The bytes are the same as in moment_math.h. Codes have few bits: an approximate
// quotient nearly always tells the code. If it does not, and for amaxes at the ends of the range, the quotient and the
// root are computed exactly.
//
// Internal to kernels/, for CUDA sources.

#ifndef PARAMSHARD_KERNELS_OPTIM_MOMENT_ROWS_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_MOMENT_ROWS_CUDA_H_

#include <cstdint>
#include <type_traits>

#include "kernels/formats/bfloat16.h"
#include "kernels/formats/packed_casts_cuda.h"
#include "kernels/optim/adam_math_cuda.h"
#include "kernels/optim/moment.h"
#include "kernels/optim/moment_math.h"
#include "kernels/optim/step_kernels.h"
#include "kernels/optim/tile_memory_cuda.h"

namespace paramshard::gpu {

// The types' casts, four elements at a time.
template <KernelMoments kType>
struct MomentCasts;

template <>
struct MomentCasts<KernelMoments::kFP32> {
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
struct MomentCasts<KernelMoments::kBF16> {
  using Stored = uint16_t;
  __device__ static void Decode(const Quad<Stored>& stored, float (&values)[kQuad]) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) values[j] = DecodeBFloat16(stored.Get(j));
  }
  __device__ static Quad<Stored> Encode(const float (&values)[kQuad]) { return EncodeBFloat16Quad(values); }
};

template <>
struct MomentCasts<KernelMoments::kFP16> {
  using Stored = uint16_t;
  static constexpr float kMax = kFloat16Max;
  // Largest relative error of the quotient that a code is taken from (see EstimateBlock). kRefined: its reciprocal has
  // to be refined to stay below the error.
  static constexpr float kDoubt = 0x1p-21f;
  static constexpr bool kRefined = true;
  // The smallest amax of exp_avg_sq whose block is estimated, and the factor of its elements, which makes normal
  // numbers of all elements with codes that are not zero.
  static constexpr float kLeastSquare = 0x1p-96f;
  static constexpr float kLift = 0x1p64f;
  __device__ static void Decode(const Quad<Stored>& stored, float (&values)[kQuad]) {
    DecodeFloat16Pair(stored.words[0], values[0], values[1]);
    DecodeFloat16Pair(stored.words[1], values[2], values[3]);
  }
  __device__ static Quad<Stored> Encode(const float (&values)[kQuad]) {
    return {{EncodeFloat16PairSaturating(values[0], values[1]), EncodeFloat16PairSaturating(values[2], values[3])}};
  }
  __device__ static bool AreSame(const Quad<Stored>& a, const Quad<Stored>& b) {
    return ((a.words[0] ^ b.words[0]) | (a.words[1] ^ b.words[1])) == 0;
  }
};

template <>
struct MomentCasts<KernelMoments::kFP8> {
  using Stored = uint8_t;
  static constexpr float kMax = E4M3::kMax;
  static constexpr float kDoubt = 0x1p-20f;
  static constexpr bool kRefined = false;
  static constexpr float kLeastSquare = 0x1p-80f;
  static constexpr float kLift = 1.0f;
  __device__ static void Decode(const Quad<Stored>& stored, float (&values)[kQuad]) {
    DecodeE4M3Quad(stored.word, values);
  }
  __device__ static Quad<Stored> Encode(const float (&values)[kQuad]) {
    return {EncodeFloat8Quad<E4M3>(values[0], values[1], values[2], values[3])};
  }
  __device__ static bool AreSame(const Quad<Stored>& a, const Quad<Stored>& b) { return a.word == b.word; }
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

// Divides by the scale of a block whose amax is `amax`. With ordinary scales the quotients are exact down to 2^-36;
// smaller quotients become zeros of their sign in either type.
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

// Returns the amax of a warp's block of values before scaling, ignoring NaN.
__device__ __forceinline__ float AmaxOfBlock(const float (&values)[kQuad]) {
  float amax = 0.0f;
#pragma unroll
  for (int j = 0; j < kQuad; ++j) amax = fmaxf(amax, fabsf(values[j]));
  return FloatFromBits(__reduce_max_sync(~0u, FloatBits(amax)));
}

// Bits that are not below those of the largest one, and the same where they are in the range of EncodeByEstimate(). Of
// exp_avg_sq the largest itself, whose root is that of all: negative values and NaN count as very large there.
template <bool kRoot>
__device__ __forceinline__ uint32_t LargestOfBlock(const float (&values)[kQuad]) {
  uint32_t largest;
  if constexpr (kRoot) {
    largest = max(max(FloatBits(values[0]), FloatBits(values[1])), max(FloatBits(values[2]), FloatBits(values[3])));
  } else {
    // Four NaN give one.
    largest = FloatBits(fmaxf(fmaxf(fabsf(values[0]), fabsf(values[1])), fmaxf(fabsf(values[2]), fabsf(values[3]))));
  }
  return __reduce_max_sync(~0u, largest);
}

__device__ __forceinline__ float ApproximateRoot(float x) {
  float result;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Finds the codes of values divided by `scale_inv`; returns false if an approximate quotient does not tell a code. The
// amax of the block is 0 or in [2^-60, 2^60), for exp_avg_sq in [kLeastSquare, 2^64).
//
// In units of 2^-24, relatively: the approximate root is off by 2 and the exact one by 1, the reciprocal by 2, or 1
// where it is refined, and each product by 1: 8 at most with the rounding of the exact quotient, 7 where refined. What
// is `kDoubt` below and above has the exact one between. If both are cast to one code, so is the exact one. (Below
// 2^-126 products are off by more, and roots of subnormal numbers are zero; all of them are cast to zeros.)
template <typename Casts, bool kRoot>
__device__ __forceinline__ bool EncodeByEstimate(const float (&values)[kQuad], float scale_inv,
                                                 Quad<typename Casts::Stored>& codes) {
  constexpr bool kLifts = kRoot && Casts::kLift != 1.0f;
  static_assert(!kLifts || Casts::kLift == 0x1p64f);
  float reciprocal = ApproximateReciprocal(scale_inv);
  if constexpr (Casts::kRefined) reciprocal = fmaf(fmaf(-scale_inv, reciprocal, 1.0f), reciprocal, reciprocal);
  if constexpr (kLifts) reciprocal = reciprocal * 0x1p-32f;
  const float low = reciprocal * (1.0f - Casts::kDoubt);
  const float high = reciprocal * (1.0f + Casts::kDoubt);
  float lower[kQuad];
  float upper[kQuad];
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    float to_store = values[j];
    if constexpr (kLifts) to_store = to_store * Casts::kLift;
    if constexpr (kRoot) to_store = ApproximateRoot(to_store);
    lower[j] = to_store * low;
    upper[j] = to_store * high;
  }
  codes = Casts::Encode(lower);
  return Casts::AreSame(codes, Casts::Encode(upper));
}

// The scale_inv of a block whose amax is in that range, or 0.
template <typename Casts>
__device__ __forceinline__ float OrdinaryScaleInv(float amax) {
  constexpr ReciprocalPair kReciprocal = NearestReciprocalPair(Casts::kMax);
  const float quotient = Divide(amax, kReciprocal);
  return amax == 0.0f ? 1.0f : quotient;
}

// The codes and the scale of a block, of which each lane of a warp has a part.
template <typename Casts>
struct EncodedBlock {
  Quad<typename Casts::Stored> codes;
  float scale_inv;
  // Amax of the block's values before scaling; not known yet if the block is not ordinary.
  float amax;
  // The same in all lanes.
  bool is_ordinary;
};

// Without branches, so that the blocks of several moments are estimated side by side. False where CorrectBlock() must
// follow: where a code is in doubt, in this lane, or where the block is not ordinary, in all.
template <typename Casts, bool kRoot>
__device__ __forceinline__ bool EstimateBlock(const float (&values)[kQuad], EncodedBlock<Casts>& encoded) {
  constexpr float kLeast = kRoot ? Casts::kLeastSquare : 0x1p-60f;
  constexpr float kEnd = kRoot ? 0x1p64f : 0x1p60f;
  const uint32_t largest = LargestOfBlock<kRoot>(values);
  encoded.is_ordinary = largest == 0 || largest - FloatBits(kLeast) < FloatBits(kEnd) - FloatBits(kLeast);
  encoded.amax = FloatFromBits(largest);
  if constexpr (kRoot) {
    const float root = Root(encoded.amax, ApproximateReciprocalRoot(encoded.amax));
    // The root of zero is a NaN here.
    encoded.amax = largest == 0 ? 0.0f : root;
  }
  encoded.scale_inv = OrdinaryScaleInv<Casts>(encoded.amax);
  const bool is_certain = EncodeByEstimate<Casts, kRoot>(values, encoded.scale_inv, encoded.codes);
  return encoded.is_ordinary && is_certain;
}

// All lanes call it for a block that is not ordinary.
template <typename Casts, bool kRoot>
__device__ __forceinline__ void CorrectBlock(const float (&values)[kQuad], EncodedBlock<Casts>& encoded) {
  float to_store[kQuad] = {values[0], values[1], values[2], values[3]};
  if constexpr (kRoot) TakeRoots(to_store);
  if (!encoded.is_ordinary) {
    encoded.amax = AmaxOfBlock(to_store);
    encoded.scale_inv = MomentScaleInv(encoded.amax, Casts::kMax);
  }
  DivideByScale(encoded.amax, encoded.scale_inv, to_store);
  encoded.codes = Casts::Encode(to_store);
}

// One moment of an extent. kRoot: exp_avg_sq.
template <typename Access, KernelMoments kType, bool kRoot>
class MomentRows {
 public:
  using Casts = MomentCasts<kType>;
  using Stored = typename Casts::Stored;

  static constexpr bool kHasScales = kType == KernelMoments::kFP16 || kType == KernelMoments::kFP8;
  static constexpr int kSlotBytes = Access::template kRowBytes<Stored>;

  explicit __device__ MomentRows(const MutableMoment& moment, float scale_inv = 1.0f)
      : data_(static_cast<Stored*>(moment.data)), scales_(moment.scales), scale_inv_(scale_inv) {}

  // Loads the scales of the blocks that the warp walks. All lanes of the warp call this and the functions below.
  template <typename WalkType>
  __device__ void LoadScales(const WalkType& walk) {
    if constexpr (kHasScales) {
      if (Lane() < walk.rows) scale_inv_ = scales_[walk.BlockAt(Lane())];
    }
  }

  // Stores the scales that Store() has left.
  template <typename WalkType>
  __device__ void StoreScales(const WalkType& walk, int64_t distance) const {
    if constexpr (kHasScales) {
      if (Lane() < walk.rows) StoreGlobal(scale_inv_, Moved(scales_, distance) + walk.BlockAt(Lane()));
    }
  }

  // Copies a row into its slot.
  __device__ void Fetch(int64_t index, uint32_t valid, uint8_t* slot) const {
    Access::Fetch(data_, index, valid, slot);
  }

  __device__ void Read(int64_t index, int row, const uint8_t* slot, float (&values)[kQuad]) const {
    Casts::Decode(Access::Read(data_, index, slot), values);
    if constexpr (kHasScales) {
      const float scale_inv = __shfl_sync(~0u, scale_inv_, row);
#pragma unroll
      for (int j = 0; j < kQuad; ++j) values[j] = MomentFromStored<kRoot>(values[j] * scale_inv);
    }
  }

  // A row as Store() stores it. Estimate() returns false if the row needs Correct().
  using Encoded = std::conditional_t<kHasScales, EncodedBlock<Casts>, Quad<Stored>>;

  __device__ static bool Estimate(const float (&values)[kQuad], Encoded& encoded) {
    if constexpr (kHasScales) {
      return EstimateBlock<Casts, kRoot>(values, encoded);
    } else {
      encoded = Casts::Encode(values);
      return true;
    }
  }
  __device__ static void Correct(const float (&values)[kQuad], Encoded& encoded) {
    if constexpr (kHasScales) CorrectBlock<Casts, kRoot>(values, encoded);
  }
  __device__ void Store(const Encoded& encoded, int64_t index, int64_t distance, int row, uint32_t valid) {
    if constexpr (kHasScales) {
      Access::Store(encoded.codes, index, valid, Moved(data_, distance));
      if (Lane() == row) scale_inv_ = encoded.scale_inv;
    } else {
      Access::Store(encoded, index, valid, Moved(data_, distance));
    }
  }

  __device__ float scale_inv() const { return scale_inv_; }

 private:
  Stored* data_;
  float* scales_;
  // Scale of the warp's row number Lane().
  float scale_inv_;
};

// A moment whose type is known when the kernel runs. The same for all threads.
template <typename Access, bool kRoot>
class MomentRows<Access, KernelMoments::kAny, kRoot> {
 public:
  static constexpr int kSlotBytes = Access::template kRowBytes<float>;

  explicit __device__ MomentRows(const MutableMoment& moment) : moment_(moment) {}

  template <typename WalkType>
  __device__ void LoadScales(const WalkType& walk) {
    WithType([&](auto& rows) { rows.LoadScales(walk); });
  }
  template <typename WalkType>
  __device__ void StoreScales(const WalkType& walk, int64_t distance) {
    WithType([&](auto& rows) { rows.StoreScales(walk, distance); });
  }
  __device__ void Fetch(int64_t index, uint32_t valid, uint8_t* slot) {
    WithType([&](auto& rows) { rows.Fetch(index, valid, slot); });
  }
  __device__ void Read(int64_t index, int row, const uint8_t* slot, float (&values)[kQuad]) {
    WithType([&](auto& rows) { rows.Read(index, row, slot, values); });
  }
  // Encoded where it is stored.
  using Encoded = Quad<float>;

  __device__ static bool Estimate(const float (&values)[kQuad], Encoded& encoded) {
    encoded = {{values[0], values[1], values[2], values[3]}};
    return true;
  }
  __device__ static void Correct(const float (&/*values*/)[kQuad], Encoded& /*encoded*/) {}
  __device__ void Store(const Encoded& encoded, int64_t index, int64_t distance, int row, uint32_t valid) {
    WithType([&](auto& rows) {
      typename std::decay_t<decltype(rows)>::Encoded codes;
      if (!rows.Estimate(encoded.values, codes)) rows.Correct(encoded.values, codes);
      rows.Store(codes, index, distance, row, valid);
    });
  }

 private:
  template <typename Function>
  __device__ void WithType(const Function& function) {
    switch (moment_.type) {
      case MomentType::kFP32:
        return With<KernelMoments::kFP32>(function);
      case MomentType::kBF16:
        return With<KernelMoments::kBF16>(function);
      case MomentType::kFP16:
        return With<KernelMoments::kFP16>(function);
      case MomentType::kFP8:
        return With<KernelMoments::kFP8>(function);
    }
  }

  template <KernelMoments kType, typename Function>
  __device__ void With(const Function& function) {
    MomentRows<Access, kType, kRoot> rows(moment_, scale_inv_);
    function(rows);
    scale_inv_ = rows.scale_inv();
  }

  const MutableMoment& moment_;
  float scale_inv_ = 1.0f;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_MOMENT_ROWS_CUDA_H_
