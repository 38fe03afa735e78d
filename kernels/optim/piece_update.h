// The loop that an optimizer's policy (optimizers.h) is compiled into: elements side by side, moments in FP32 or BF16.
//
// Internal to kernels/.

#ifndef PARAMSHARD_KERNELS_OPTIM_PIECE_UPDATE_H_
#define PARAMSHARD_KERNELS_OPTIM_PIECE_UPDATE_H_

#include <cstdint>
#include <utility>

#include "kernels/base/float_bits.h"
#include "kernels/base/simd_clones.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/optim/moment.h"
#include "kernels/optim/optimizer_step.h"

namespace paramshard {

// Elements that are updated together, rows `stride` elements apart, their moments in FP32 or BF16: where they are read,
// and where they are left, which is the same place or has nothing in common with it.
struct Piece {
  const float* gradient;
  const float* master_from;
  float* master;
  // Set for the moments that the optimizer keeps.
  PerMoment<MutableMoment> moments_from;
  PerMoment<MutableMoment> moments;
  int64_t stride;
  int64_t rows;
  int64_t cols;
};

// An optimizer as the fused step (policy_step.h) calls it.
struct PieceUpdate {
  void (*update)(const OptimizerStep& step, const Piece& piece);
  int moment_count;
};

// A moment without scales: the element type of its array and two conversions.
struct FloatMoment {
  using Stored = float;
  PARAMSHARD_ALWAYS_INLINE static float Load(Stored stored) { return stored; }
  PARAMSHARD_ALWAYS_INLINE static Stored Store(float value) { return CanonicalNan(value); }
};

struct BFloat16Moment {
  using Stored = uint16_t;
  PARAMSHARD_ALWAYS_INLINE static float Load(Stored stored) { return DecodeBFloat16(stored); }
  PARAMSHARD_ALWAYS_INLINE static Stored Store(float value) { return EncodeBFloat16(value); }
};

// A place in an array of moments, and the same one where they are left.
template <typename Stored>
struct MovedElements {
  const Stored* from;
  Stored* to;
};

template <typename Policy, typename... Moments, size_t... kIndex>
PARAMSHARD_ALWAYS_INLINE void UpdateElements(const OptimizerStep& step, std::index_sequence<kIndex...>, int64_t count,
                                             const float* gradient, MovedElements<float> master,
                                             MovedElements<typename Moments::Stored>... stored) {
  // A copy, which no store to the arrays can change: it stays in registers.
  const OptimizerStep constants = step;
  PARAMSHARD_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < count; ++i) {
    float value = master.from[i];
    float moments[sizeof...(Moments) + 1] = {Moments::Load(stored.from[i])...};
    Policy::Update(constants, gradient[i], value, moments);
    master.to[i] = CanonicalNan(value);
    ((stored.to[i] = Moments::Store(moments[kIndex])), ...);
  }
}

template <typename Policy, typename... Moments, size_t... kIndex>
PARAMSHARD_ALWAYS_INLINE void UpdateRows(const OptimizerStep& step, const Piece& piece,
                                         std::index_sequence<kIndex...> indices) {
  for (int64_t row = 0; row < piece.rows; ++row) {
    const int64_t first = row * piece.stride;
    UpdateElements<Policy, Moments...>(
        step, indices, piece.cols, piece.gradient + first, {piece.master_from + first, piece.master + first},
        MovedElements<typename Moments::Stored>{
            static_cast<const typename Moments::Stored*>(piece.moments_from.values[kIndex].data) + first,
            static_cast<typename Moments::Stored*>(piece.moments.values[kIndex].data) + first}...);
  }
}

// Steps a piece; the SIMD clones call it. `Moments` are the storage types found so far, of the first moments.
template <typename Policy, typename... Moments>
PARAMSHARD_ALWAYS_INLINE void UpdatePieceWith(const OptimizerStep& step, const Piece& piece) {
  constexpr int kKnown = sizeof...(Moments);
  if constexpr (kKnown == Policy::kMomentCount) {
    UpdateRows<Policy, Moments...>(step, piece, std::make_index_sequence<kKnown>());
  } else if (piece.moments.values[kKnown].type == MomentType::kFP32) {
    UpdatePieceWith<Policy, Moments..., FloatMoment>(step, piece);
  } else {
    UpdatePieceWith<Policy, Moments..., BFloat16Moment>(step, piece);
  }
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_PIECE_UPDATE_H_
