#include "kernels/optim/adam.h"

#include <cmath>
#include <cstdint>

#include "kernels/base/check.h"
#include "kernels/base/float_bits.h"
#include "kernels/base/simd_clones.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/tile.h"

namespace paramshard {
namespace {

// How a moment is read and stored, as an array's element type and two conversions.
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

template <AdamMode kMode, typename ExpAvg, typename ExpAvgSq>
PARAMSHARD_ALWAYS_INLINE void UpdateElements(const AdamStep& step, const float* __restrict gradient,
                                             float* __restrict master, typename ExpAvg::Stored* __restrict exp_avg,
                                             typename ExpAvgSq::Stored* __restrict exp_avg_sq, int64_t count) {
  const AdamStep constants = step;
  for (int64_t i = 0; i < count; ++i) {
    const AdamElement old = {master[i], ExpAvg::Load(exp_avg[i]), ExpAvgSq::Load(exp_avg_sq[i])};
    const AdamElement fresh = UpdateAdamElement<kMode>(constants, gradient[i], old);
    master[i] = CanonicalNan(fresh.master);
    exp_avg[i] = ExpAvg::Store(fresh.exp_avg);
    exp_avg_sq[i] = ExpAvgSq::Store(fresh.exp_avg_sq);
  }
}

template <AdamMode kMode, typename ExpAvg, typename ExpAvgSq>
PARAMSHARD_ALWAYS_INLINE void UpdateRows(const AdamStep& step, const float* gradient, const AdamState& state,
                                         int64_t stride, const Tile& tile) {
  for (int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
    const int64_t first = row * stride + tile.col;
    UpdateElements<kMode, ExpAvg, ExpAvgSq>(
        step, gradient + first, state.master + first, static_cast<typename ExpAvg::Stored*>(state.exp_avg.data) + first,
        static_cast<typename ExpAvgSq::Stored*>(state.exp_avg_sq.data) + first, tile.cols);
  }
}

template <AdamMode kMode, typename ExpAvg>
PARAMSHARD_ALWAYS_INLINE void UpdateWithExpAvg(const AdamStep& step, const float* gradient, const AdamState& state,
                                               int64_t stride, const Tile& tile) {
  if (state.exp_avg_sq.type == MomentType::kFP32) {
    UpdateRows<kMode, ExpAvg, FloatMoment>(step, gradient, state, stride, tile);
  } else {
    UpdateRows<kMode, ExpAvg, BFloat16Moment>(step, gradient, state, stride, tile);
  }
}

template <AdamMode kMode>
PARAMSHARD_ALWAYS_INLINE void UpdateInMode(const AdamStep& step, const float* gradient, const AdamState& state,
                                           int64_t stride, const Tile& tile) {
  if (state.exp_avg.type == MomentType::kFP32) {
    UpdateWithExpAvg<kMode, FloatMoment>(step, gradient, state, stride, tile);
  } else {
    UpdateWithExpAvg<kMode, BFloat16Moment>(step, gradient, state, stride, tile);
  }
}

// Updates one tile of an extent whose rows are `stride` elements long.
PARAMSHARD_SIMD_CLONES
void UpdateTile(const AdamStep& step, const float* gradient, const AdamState& state, int64_t stride, const Tile& tile) {
  if (step.mode == AdamMode::kAdamW) {
    UpdateInMode<AdamMode::kAdamW>(step, gradient, state, stride, tile);
  } else {
    UpdateInMode<AdamMode::kL2>(step, gradient, state, stride, tile);
  }
}

}  // namespace

float BiasCorrection(float beta, int64_t step) {
  return static_cast<float>(1.0 - std::pow(static_cast<double>(beta), static_cast<double>(step)));
}

float FusedAdam(const AdamStep& step, const float* gradient, const AdamState& state, int64_t rows, int64_t cols,
                const Encoding& encoding, MutablePlane row_wise, MutablePlane column_wise,
                const TensorScaling& /*scaling*/) {
  PARAMSHARD_CHECK(CheckEncodable(encoding).ok());
  const MatrixShape walked = WalkedShape(encoding.format, rows, cols);
  ForEachTile(encoding.format, walked, [&](const Tile& tile) {
    UpdateTile(step, gradient, state, walked.cols, tile);
    EncodeTile(encoding, state.master, walked, tile, row_wise, column_wise);
  });
  return 0.0f;
}

}  // namespace paramshard
