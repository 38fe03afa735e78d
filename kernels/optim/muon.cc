#include "kernels/optim/muon.h"

#include <algorithm>

#include "kernels/base/simd_clones.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/unscaled.h"
#include "kernels/optim/muon_math.h"

namespace paramshard {
namespace {

// Elements that are staged at a time: whole blocks of moments, few enough for the first-level cache.
constexpr int64_t kChunk = 8 * kMomentBlockSize;

// A chunk of a row: the gradient as float32, and the momentum.
struct Chunk {
  Chunk(const ConstGradient& stored, int64_t first, int64_t size) : count(size) {
    if (stored.type == GradientType::kFP32) {
      gradient = static_cast<const float*>(stored.data) + first;
    } else {
      DecodeBFloat16s(static_cast<const uint8_t*>(stored.data) + first * GradientBytes(stored.type), size, widened);
      gradient = widened;
    }
  }

  void Read(const MutableMoment& stored) {
    DecodeMoment(MomentKind::kFirst, {stored.data, stored.scales, stored.type}, 1, count, momentum);
  }
  void Write(const MutableMoment& stored) const { EncodeMoment(MomentKind::kFirst, momentum, 1, count, stored); }

  int64_t count;
  const float* gradient;
  float momentum[kChunk];
  float widened[kChunk];
};

PARAMSHARD_SIMD_CLONES
void StepMomentum(const OptimizerStep& step, Chunk& chunk) {
  const OptimizerStep constants = step;
  PARAMSHARD_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < chunk.count; ++i) {
    chunk.momentum[i] = MuonMomentum(constants, chunk.gradient[i], chunk.momentum[i]);
  }
}

PARAMSHARD_SIMD_CLONES
void MakeUpdate(const OptimizerStep& step, const Chunk& chunk, uint16_t* update) {
  const OptimizerStep constants = step;
  PARAMSHARD_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < chunk.count; ++i) {
    update[i] = EncodeBFloat16(MuonUpdate(constants, chunk.gradient[i], chunk.momentum[i]));
  }
}

// Calls `visit(chunk, row, column, first element)` for each chunk.
template <typename Visit>
void ForEachChunk(const ConstGradient& gradient, int64_t rows, int64_t cols, const Visit& visit) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; col += kChunk) {
      const int64_t first = row * cols + col;
      Chunk chunk(gradient, first, std::min(kChunk, cols - col));
      visit(chunk, row, col, first);
    }
  }
}

}  // namespace

std::vector<BFloat16Matrix> MatricesOf(const MuonMatrices& muon, uint16_t* update, int64_t columns) {
  std::vector<BFloat16Matrix> matrices;
  for (const MuonMatrices::Part& part : muon.parts) {
    matrices.push_back({update + part.row * columns + part.column, part.rows, part.columns, columns});
  }
  return matrices;
}

void StepMuonMomentum(const OptimizerStep& step, ConstGradient gradient, const MutableMoment& old,
                      const MutableMoment& fresh, int64_t rows, int64_t cols) {
  ForEachChunk(gradient, rows, cols, [&](Chunk& chunk, int64_t row, int64_t col, int64_t) {
    chunk.Read(MomentAt(old, cols, row, col));
    StepMomentum(step, chunk);
    chunk.Write(MomentAt(fresh, cols, row, col));
  });
}

void MakeMuonUpdate(const OptimizerStep& step, ConstGradient gradient, const MutableMoment& momentum, int64_t rows,
                    int64_t cols, uint16_t* update) {
  ForEachChunk(gradient, rows, cols, [&](Chunk& chunk, int64_t row, int64_t col, int64_t first) {
    chunk.Read(MomentAt(momentum, cols, row, col));
    MakeUpdate(step, chunk, update + first);
  });
}

void MakeMuonUpdateFromOld(const OptimizerStep& step, ConstGradient gradient, const MutableMoment& old, int64_t rows,
                           int64_t cols, uint16_t* update) {
  float elements[kChunk];
  float scales[kChunk / kMomentBlockSize];
  const MutableMoment stored = {elements, scales, old.type};
  ForEachChunk(gradient, rows, cols, [&](Chunk& chunk, int64_t row, int64_t col, int64_t first) {
    chunk.Read(MomentAt(old, cols, row, col));
    StepMomentum(step, chunk);
    // The momentum is read as it is stored.
    chunk.Write(stored);
    chunk.Read(stored);
    MakeUpdate(step, chunk, update + first);
  });
}

}  // namespace paramshard
