#include "kernels/optim/adam.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/base/check.h"
#include "kernels/base/float_bits.h"
#include "kernels/base/simd_clones.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/tile.h"
#include "kernels/formats/unscaled.h"
#include "kernels/optim/master_remainder.h"

namespace paramshard {
namespace {

// How a moment without scales is read and stored, as an array's element type and two conversions.
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

template <WeightDecay kDecay, typename ExpAvg, typename ExpAvgSq>
PARAMSHARD_ALWAYS_INLINE void UpdateElements(const AdamStep& step, const float* __restrict gradient,
                                             float* __restrict master, typename ExpAvg::Stored* __restrict exp_avg,
                                             typename ExpAvgSq::Stored* __restrict exp_avg_sq, int64_t count) {
  const AdamStep constants = step;
  for (int64_t i = 0; i < count; ++i) {
    const AdamElement old = {master[i], ExpAvg::Load(exp_avg[i]), ExpAvgSq::Load(exp_avg_sq[i])};
    const AdamElement fresh = UpdateAdamElement<kDecay>(constants, gradient[i], old);
    master[i] = CanonicalNan(fresh.master);
    exp_avg[i] = ExpAvg::Store(fresh.exp_avg);
    exp_avg_sq[i] = ExpAvgSq::Store(fresh.exp_avg_sq);
  }
}

// Elements that are updated together, rows `stride` elements apart, their moments in FP32 or BF16.
struct Piece {
  const float* gradient;
  float* master;
  MutableMoment exp_avg;
  MutableMoment exp_avg_sq;
  int64_t stride;
  int64_t rows;
  int64_t cols;
};

template <WeightDecay kDecay, typename ExpAvg, typename ExpAvgSq>
PARAMSHARD_ALWAYS_INLINE void UpdateRows(const AdamStep& step, const Piece& piece) {
  auto* exp_avg = static_cast<typename ExpAvg::Stored*>(piece.exp_avg.data);
  auto* exp_avg_sq = static_cast<typename ExpAvgSq::Stored*>(piece.exp_avg_sq.data);
  for (int64_t row = 0; row < piece.rows; ++row) {
    const int64_t first = row * piece.stride;
    UpdateElements<kDecay, ExpAvg, ExpAvgSq>(step, piece.gradient + first, piece.master + first, exp_avg + first,
                                             exp_avg_sq + first, piece.cols);
  }
}

template <WeightDecay kDecay, typename ExpAvg>
PARAMSHARD_ALWAYS_INLINE void UpdateWithExpAvg(const AdamStep& step, const Piece& piece) {
  if (piece.exp_avg_sq.type == MomentType::kFP32) {
    UpdateRows<kDecay, ExpAvg, FloatMoment>(step, piece);
  } else {
    UpdateRows<kDecay, ExpAvg, BFloat16Moment>(step, piece);
  }
}

template <WeightDecay kDecay>
PARAMSHARD_ALWAYS_INLINE void UpdateWithDecay(const AdamStep& step, const Piece& piece) {
  if (piece.exp_avg.type == MomentType::kFP32) {
    UpdateWithExpAvg<kDecay, FloatMoment>(step, piece);
  } else {
    UpdateWithExpAvg<kDecay, BFloat16Moment>(step, piece);
  }
}

PARAMSHARD_SIMD_CLONES
void UpdatePiece(const AdamStep& step, const Piece& piece) {
  switch (DecayOf(step.mode)) {
    case WeightDecay::kOfParameter:
      return UpdateWithDecay<WeightDecay::kOfParameter>(step, piece);
    case WeightDecay::kOfGradient:
      return UpdateWithDecay<WeightDecay::kOfGradient>(step, piece);
  }
}

// Elements that are staged at a time: few enough for the first-level cache, whole blocks of moments.
constexpr int64_t kChunkSize = 8 * kMomentBlockSize;

// A chunk's part of a moment, as float32 while it is updated when its type has scales.
class StagedMoment {
 public:
  StagedMoment(MomentKind kind, const MutableMoment& stored, int64_t count)
      : kind_(kind), stored_(stored), count_(count) {
    if (is_staged()) DecodeMoment(kind_, {stored_.data, stored_.scales, stored_.type}, 1, count_, values_);
  }

  MutableMoment Unscaled() { return is_staged() ? MutableMoment{values_, nullptr, MomentType::kFP32} : stored_; }
  void Store() const {
    if (is_staged()) EncodeMoment(kind_, values_, 1, count_, stored_);
  }

 private:
  bool is_staged() const { return HasMomentScales(stored_.type); }

  const MomentKind kind_;
  const MutableMoment stored_;
  const int64_t count_;
  float values_[kChunkSize];
};

// A chunk's part of the master, joined while it is updated when it is stored with a remainder.
class StagedMaster {
 public:
  StagedMaster(const AdamState& state, uint8_t* weights, int64_t first, int64_t count) : count_(count) {
    if (state.remainder == nullptr) {
      values_ = state.master + first;
      return;
    }
    values_ = joined_;
    weights_ = weights + first * sizeof(SplitMaster::weight);
    remainder_ = state.remainder + first;
    JoinMasters(weights_, remainder_, count_, values_);
  }

  float* values() { return values_; }
  void Store() const {
    if (remainder_ != nullptr) SplitMasters(values_, count_, weights_, remainder_);
  }

 private:
  const int64_t count_;
  float* values_;
  uint8_t* weights_ = nullptr;
  int16_t* remainder_ = nullptr;
  float joined_[kChunkSize];
};

// A chunk's part of the gradient, as float32.
class StagedGradient {
 public:
  StagedGradient(const ConstGradient& stored, int64_t first, int64_t count) {
    if (stored.type == GradientType::kFP32) {
      values_ = static_cast<const float*>(stored.data) + first;
    } else {
      DecodeBFloat16s(static_cast<const uint8_t*>(stored.data) + first * GradientBytes(stored.type), count, widened_);
    }
  }

  const float* values() const { return values_; }

 private:
  float widened_[kChunkSize];
  const float* values_ = widened_;
};

// An extent as it is walked: `cols` elements to a row.
struct Extent {
  ConstGradient gradient;
  const AdamState& state;
  uint8_t* weights;  // of a master with a remainder
  int64_t cols;
};

bool HasMomentScales(const AdamState& state) {
  return HasMomentScales(state.exp_avg.type) || HasMomentScales(state.exp_avg_sq.type);
}

void UpdateStaged(const AdamStep& step, const Extent& extent, int64_t row, int64_t col, int64_t count) {
  const int64_t first = row * extent.cols + col;
  const StagedGradient gradient(extent.gradient, first, count);
  StagedMaster master(extent.state, extent.weights, first, count);
  StagedMoment exp_avg(MomentKind::kExpAvg, MomentAt(extent.state.exp_avg, extent.cols, row, col), count);
  StagedMoment exp_avg_sq(MomentKind::kExpAvgSq, MomentAt(extent.state.exp_avg_sq, extent.cols, row, col), count);
  UpdatePiece(step, {gradient.values(), master.values(), exp_avg.Unscaled(), exp_avg_sq.Unscaled(), 0, 1, count});
  master.Store();
  exp_avg.Store();
  exp_avg_sq.Store();
}

void UpdateTile(const AdamStep& step, const Extent& extent, const Tile& tile) {
  const AdamState& state = extent.state;
  if (state.remainder == nullptr && !HasMomentScales(state) && extent.gradient.type == GradientType::kFP32) {
    const int64_t first = tile.row * extent.cols + tile.col;
    return UpdatePiece(
        step, {static_cast<const float*>(extent.gradient.data) + first, state.master + first,
               MomentAt(state.exp_avg, extent.cols, tile.row, tile.col),
               MomentAt(state.exp_avg_sq, extent.cols, tile.row, tile.col), extent.cols, tile.rows, tile.cols});
  }
  for (int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
    for (int64_t col = 0; col < tile.cols; col += kChunkSize) {
      UpdateStaged(step, extent, row, tile.col + col, std::min(kChunkSize, tile.cols - col));
    }
  }
}

float TileAmax(const float* master, int64_t stride, const Tile& tile) {
  float amax = 0.0f;
  for (int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
    amax = std::max(amax, Amax(master + row * stride + tile.col, tile.cols));
  }
  return amax;
}

// Blocks of moments end with their row.
MatrixShape WalkedShape(const AdamState& state, Format format, int64_t rows, int64_t cols) {
  return HasMomentScales(state) ? MatrixShape{rows, cols} : WalkedShape(format, rows, cols);
}

}  // namespace

float BiasCorrection(float beta, int64_t step) {
  return static_cast<float>(1.0 - std::pow(static_cast<double>(beta), static_cast<double>(step)));
}

float FusedAdam(const AdamStep& step, ConstGradient gradient, const AdamState& state, int64_t rows, int64_t cols,
                const Encoding& encoding, MutablePlane row_wise, MutablePlane column_wise,
                const TensorScaling& scaling) {
  PARAMSHARD_CHECK(CheckEncodable(encoding).ok());
  PARAMSHARD_CHECK(IsAdamMode(step.mode));
  const bool is_split = state.remainder != nullptr;
  PARAMSHARD_CHECK(!is_split || (encoding.format == Format::kBF16 && (row_wise.data != nullptr || rows * cols == 0)));
  const bool encodes = !is_split && !EncodesAfterAmax(encoding.format);
  const MatrixShape walked = WalkedShape(state, encoding.format, rows, cols);
  const Extent extent = {gradient, state, row_wise.data, walked.cols};
  float amax = 0.0f;
  if (encodes) StoreTensorScaling(encoding, scaling, row_wise);
  ForEachTile(encoding.format, walked, [&](const Tile& tile) {
    UpdateTile(step, extent, tile);
    if (NeedsAmax(encoding.format)) amax = std::max(amax, TileAmax(state.master, walked.cols, tile));
    if (encodes) EncodeTile(encoding, state.master, walked, tile, row_wise, column_wise, scaling);
  });
  return amax;
}

}  // namespace paramshard
