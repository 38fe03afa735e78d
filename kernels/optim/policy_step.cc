#include "kernels/optim/policy_step.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

#include "kernels/base/check.h"
#include "kernels/formats/format.h"
#include "kernels/formats/tile.h"
#include "kernels/formats/unscaled.h"
#include "kernels/optim/master_remainder.h"
#include "kernels/optim/moved_state.h"

namespace paramshard {
namespace {

// Elements that are staged at a time: few enough for the first-level cache, whole blocks of moments.
constexpr int64_t kChunkSize = 8 * kMomentBlockSize;

constexpr int64_t kWeightBytes = sizeof(SplitMaster::weight);

// The state of an extent: where a step reads it, and where it leaves it, which may be the same place.
struct MovedState {
  OptimizerState from;
  OptimizerState to;
  // Weights of a master with a remainder, as bytes.
  const uint8_t* weights_from;
  uint8_t* weights;
};

// A chunk's part of a moment, as float32 while it is updated when its type has scales.
class StagedMoment {
 public:
  StagedMoment(MomentKind kind, const MutableMoment& from, const MutableMoment& to, int64_t count)
      : kind_(kind), from_(from), to_(to), count_(count) {
    if (is_staged()) DecodeMoment(kind_, {from_.data, from_.scales, from_.type}, 1, count_, values_);
  }

  // Returns the place where the update reads it; to() the place where it is written.
  MutableMoment from() { return is_staged() ? Staged() : from_; }
  MutableMoment to() { return is_staged() ? Staged() : to_; }
  void Store() const {
    if (is_staged()) EncodeMoment(kind_, values_, 1, count_, to_);
  }

 private:
  bool is_staged() const { return HasMomentScales(to_.type); }
  MutableMoment Staged() { return {values_, nullptr, MomentType::kFP32}; }

  const MomentKind kind_;
  const MutableMoment from_, to_;
  const int64_t count_;
  float values_[kChunkSize];
};

// A chunk's part of the master, joined while it is updated when it is stored with a remainder.
class StagedMaster {
 public:
  StagedMaster(const MovedState& state, int64_t first, int64_t count) : count_(count) {
    if (state.to.remainder == nullptr) {
      from_ = state.from.master + first;
      to_ = state.to.master + first;
      return;
    }
    from_ = to_ = joined_;
    weights_ = state.weights + first * kWeightBytes;
    remainder_ = state.to.remainder + first;
    JoinMasters(state.weights_from + first * kWeightBytes, state.from.remainder + first, count_, joined_);
  }

  // Returns the place where the update reads it; to() the place where it is written.
  const float* from() const { return from_; }
  float* to() { return to_; }
  void Store() const {
    if (remainder_ != nullptr) SplitMasters(joined_, count_, weights_, remainder_);
  }

 private:
  const int64_t count_;
  const float* from_;
  float* to_;
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
  MovedState state;
  uint8_t* plane;  // where weights are copied to; null where they are it
  int64_t cols;
};

bool HasMomentScales(const OptimizerState& state) {
  return std::any_of(state.moments.begin(), state.moments.end(),
                     [](const MutableMoment& moment) { return HasMomentScales(moment.type); });
}

void UpdateStaged(const PieceUpdate& optimizer, const OptimizerStep& step, const Extent& extent, int64_t row,
                  int64_t col, int64_t count) {
  const int64_t first = row * extent.cols + col;
  const MovedState& state = extent.state;
  const StagedGradient gradient(extent.gradient, first, count);
  StagedMaster master(state, first, count);
  std::array<std::optional<StagedMoment>, kMomentCount> moments;
  Piece piece = {.gradient = gradient.values(),
                 .master_from = master.from(),
                 .master = master.to(),
                 .moments_from = {},
                 .moments = {},
                 .stride = 0,
                 .rows = 1,
                 .cols = count};
  for (int i = 0; i < optimizer.moment_count; ++i) {
    moments[i].emplace(kMomentKinds[i].kind, MomentAt(state.from.moments.values[i], extent.cols, row, col),
                       MomentAt(state.to.moments.values[i], extent.cols, row, col), count);
    piece.moments_from.values[i] = moments[i]->from();
    piece.moments.values[i] = moments[i]->to();
  }
  optimizer.update(step, piece);
  master.Store();
  if (extent.plane != nullptr)
    std::memcpy(extent.plane + first * kWeightBytes, state.weights + first * kWeightBytes, count * kWeightBytes);
  for (int i = 0; i < optimizer.moment_count; ++i) moments[i]->Store();
}

// A tile that is updated from where it lies to where it is left.
void UpdateDirectly(const PieceUpdate& optimizer, const OptimizerStep& step, const Extent& extent, const Tile& tile) {
  const OptimizerState& from = extent.state.from;
  const OptimizerState& to = extent.state.to;
  const int64_t first = tile.row * extent.cols + tile.col;
  Piece piece = {.gradient = static_cast<const float*>(extent.gradient.data) + first,
                 .master_from = from.master + first,
                 .master = to.master + first,
                 .moments_from = {},
                 .moments = {},
                 .stride = extent.cols,
                 .rows = tile.rows,
                 .cols = tile.cols};
  for (int i = 0; i < optimizer.moment_count; ++i) {
    piece.moments_from.values[i] = MomentAt(from.moments.values[i], extent.cols, tile.row, tile.col);
    piece.moments.values[i] = MomentAt(to.moments.values[i], extent.cols, tile.row, tile.col);
  }
  optimizer.update(step, piece);
}

void UpdateTile(const PieceUpdate& optimizer, const OptimizerStep& step, const Extent& extent, const Tile& tile) {
  const OptimizerState& state = extent.state.to;
  const bool has_scales = HasMomentScales(state);
  const bool is_staged = state.remainder != nullptr || has_scales || extent.gradient.type != GradientType::kFP32;
  if (!is_staged) return UpdateDirectly(optimizer, step, extent, tile);
  // Whole rows without blocks are one long row.
  const bool is_one_row = tile.cols == extent.cols && !has_scales;
  const int64_t rows = is_one_row ? 1 : tile.rows;
  const int64_t cols = is_one_row ? tile.rows * tile.cols : tile.cols;
  for (int64_t row = tile.row; row < tile.row + rows; ++row) {
    for (int64_t col = 0; col < cols; col += kChunkSize) {
      UpdateStaged(optimizer, step, extent, row, tile.col + col, std::min(kChunkSize, cols - col));
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
MatrixShape WalkedShape(const OptimizerState& state, Format format, int64_t rows, int64_t cols) {
  return HasMomentScales(state) ? MatrixShape{rows, cols} : WalkedShape(format, rows, cols);
}

}  // namespace

float StepByPolicy(const PieceUpdate& optimizer, const OptimizerStep& step, ConstGradient gradient,
                   const OptimizerState& state, int64_t rows, int64_t cols, const Encoding& encoding,
                   MutablePlane row_wise, MutablePlane column_wise, const TensorScaling& scaling, int64_t distance) {
  PARAMSHARD_CHECK(CheckEncodable(encoding).ok());
  const bool is_split = state.remainder != nullptr;
  PARAMSHARD_CHECK(!is_split || (encoding.format == Format::kBF16 && (row_wise.data != nullptr || rows * cols == 0)));
  const bool encodes = !is_split && !EncodesAfterAmax(encoding.format);
  const MatrixShape walked = WalkedShape(state, encoding.format, rows, cols);
  const bool has_weights = is_split && state.weights != nullptr;
  // Weights that are a plane stay where they are.
  PARAMSHARD_CHECK(!is_split || has_weights || distance == 0);
  uint8_t* const weights = has_weights ? reinterpret_cast<uint8_t*>(state.weights) : row_wise.data;
  const Extent extent = {gradient,
                         {MovedBy(state, -distance), state, MovedBy(weights, -distance), weights},
                         has_weights ? row_wise.data : nullptr,
                         walked.cols};
  float amax = 0.0f;
  if (encodes) StoreTensorScaling(encoding, scaling, row_wise);
  ForEachTile(encoding.format, walked, [&](const Tile& tile) {
    UpdateTile(optimizer, step, extent, tile);
    if (NeedsAmax(encoding.format)) amax = std::max(amax, TileAmax(state.master, walked.cols, tile));
    if (encodes) EncodeTile(encoding, state.master, walked, tile, row_wise, column_wise, scaling);
  });
  return amax;
}

}  // namespace paramshard
