#include "kernels/optim/fused_step.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

#include "kernels/base/check.h"
#include "kernels/formats/tile.h"
#include "kernels/formats/unscaled.h"
#include "kernels/optim/master_remainder.h"

namespace paramshard {
namespace {

// Elements that are staged at a time: few enough for the first-level cache, whole blocks of moments.
constexpr int64_t kChunkSize = 8 * kMomentBlockSize;

constexpr int64_t kWeightBytes = sizeof(SplitMaster::weight);

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
    weights_ = weights + first * kWeightBytes;
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
  uint8_t* weights;  // of a master with a remainder, by bytes
  uint8_t* plane;    // where weights are copied to; null where they are it
  int64_t cols;
};

// Copies what lies `distance` bytes before an address to it. It is in the cache when it is updated there.
void Bring(void* target, int64_t size_bytes, int64_t distance) {
  if (target != nullptr) std::memcpy(target, static_cast<uint8_t*>(target) - distance, size_bytes);
}

// The same for the state of some elements of a row.
void BringState(const PieceUpdate& optimizer, const Extent& extent, int64_t row, int64_t col, int64_t count,
                int64_t distance) {
  const AdamState& state = extent.state;
  const int64_t first = row * extent.cols + col;
  if (state.remainder != nullptr) {
    Bring(extent.weights + first * kWeightBytes, count * kWeightBytes, distance);
    Bring(state.remainder + first, count * static_cast<int64_t>(sizeof(int16_t)), distance);
  } else {
    Bring(state.master + first, count * static_cast<int64_t>(sizeof(float)), distance);
  }
  for (int i = 0; i < optimizer.moment_count; ++i) {
    const MutableMoment moment = MomentAt(state.moments.values[i], extent.cols, row, col);
    Bring(moment.data, count * MomentBytes(moment.type), distance);
    Bring(moment.scales, MomentScaleCount(moment.type, 1, count) * static_cast<int64_t>(sizeof(float)), distance);
  }
}

bool HasMomentScales(const AdamState& state) {
  return std::any_of(state.moments.begin(), state.moments.end(),
                     [](const MutableMoment& moment) { return HasMomentScales(moment.type); });
}

void UpdateStaged(const PieceUpdate& optimizer, const AdamStep& step, const Extent& extent, int64_t row, int64_t col,
                  int64_t count) {
  const int64_t first = row * extent.cols + col;
  const StagedGradient gradient(extent.gradient, first, count);
  StagedMaster master(extent.state, extent.weights, first, count);
  std::array<std::optional<StagedMoment>, kMomentCount> moments;
  Piece piece = {gradient.values(), master.values(), {}, 0, 1, count};
  for (int i = 0; i < optimizer.moment_count; ++i) {
    moments[i].emplace(kMomentKinds[i].kind, MomentAt(extent.state.moments.values[i], extent.cols, row, col), count);
    piece.moments.values[i] = moments[i]->Unscaled();
  }
  optimizer.update(step, piece);
  master.Store();
  if (extent.plane != nullptr)
    std::memcpy(extent.plane + first * kWeightBytes, extent.weights + first * kWeightBytes, count * kWeightBytes);
  for (int i = 0; i < optimizer.moment_count; ++i) moments[i]->Store();
}

void UpdateTile(const PieceUpdate& optimizer, const AdamStep& step, const Extent& extent, const Tile& tile) {
  const AdamState& state = extent.state;
  if (state.remainder == nullptr && !HasMomentScales(state) && extent.gradient.type == GradientType::kFP32) {
    const int64_t first = tile.row * extent.cols + tile.col;
    Piece piece = {static_cast<const float*>(extent.gradient.data) + first,
                   state.master + first,
                   {},
                   extent.cols,
                   tile.rows,
                   tile.cols};
    for (int i = 0; i < optimizer.moment_count; ++i) {
      piece.moments.values[i] = MomentAt(state.moments.values[i], extent.cols, tile.row, tile.col);
    }
    return optimizer.update(step, piece);
  }
  for (int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
    for (int64_t col = 0; col < tile.cols; col += kChunkSize) {
      UpdateStaged(optimizer, step, extent, row, tile.col + col, std::min(kChunkSize, tile.cols - col));
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

float FusedStep(const PieceUpdate& optimizer, const AdamStep& step, ConstGradient gradient, const AdamState& state,
                int64_t rows, int64_t cols, const Encoding& encoding, MutablePlane row_wise, MutablePlane column_wise,
                const TensorScaling& scaling, int64_t distance) {
  PARAMSHARD_CHECK(CheckEncodable(encoding).ok());
  const bool is_split = state.remainder != nullptr;
  PARAMSHARD_CHECK(!is_split || (encoding.format == Format::kBF16 && (row_wise.data != nullptr || rows * cols == 0)));
  const bool encodes = !is_split && !EncodesAfterAmax(encoding.format);
  const MatrixShape walked = WalkedShape(state, encoding.format, rows, cols);
  const bool has_weights = is_split && state.weights != nullptr;
  uint8_t* const weights = has_weights ? reinterpret_cast<uint8_t*>(state.weights) : row_wise.data;
  const Extent extent = {gradient, state, weights, has_weights ? row_wise.data : nullptr, walked.cols};
  float amax = 0.0f;
  if (encodes) StoreTensorScaling(encoding, scaling, row_wise);
  ForEachTile(encoding.format, walked, [&](const Tile& tile) {
    if (distance != 0) {
      for (int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
        BringState(optimizer, extent, row, tile.col, tile.cols, distance);
      }
    }
    UpdateTile(optimizer, step, extent, tile);
    if (NeedsAmax(encoding.format)) amax = std::max(amax, TileAmax(state.master, walked.cols, tile));
    if (encodes) EncodeTile(encoding, state.master, walked, tile, row_wise, column_wise, scaling);
  });
  return amax;
}

}  // namespace paramshard
