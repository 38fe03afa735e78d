#include "kernels/optim/adam.h"

#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/simd_clones.h"
#include "kernels/optim/adam_math.h"
#include "kernels/optim/fused_step.h"
#include "kernels/optim/optimizers.h"
#include "kernels/optim/piece_update.h"

namespace paramshard {
namespace {

PARAMSHARD_SIMD_CLONES
void UpdateByAdamW(const AdamStep& step, const Piece& piece) { UpdatePieceWith<AdamW>(step, piece); }

PARAMSHARD_SIMD_CLONES
void UpdateByAdamL2(const AdamStep& step, const Piece& piece) { UpdatePieceWith<AdamL2>(step, piece); }

PieceUpdate UpdateOf(AdamMode mode) {
  switch (mode) {
    case AdamMode::kAdamW:
      return {UpdateByAdamW, AdamW::kMomentCount};
    case AdamMode::kL2:
      return {UpdateByAdamL2, AdamL2::kMomentCount};
  }
  PARAMSHARD_CHECK(IsAdamMode(mode));
  return {};
}

}  // namespace

float BiasCorrection(float beta, int64_t step) {
  return static_cast<float>(1.0 - std::pow(static_cast<double>(beta), static_cast<double>(step)));
}

float FusedAdam(const AdamStep& step, ConstGradient gradient, const AdamState& state, int64_t rows, int64_t cols,
                const Encoding& encoding, MutablePlane row_wise, MutablePlane column_wise, const TensorScaling& scaling,
                int64_t distance) {
  return FusedStep(UpdateOf(step.mode), step, gradient, state, rows, cols, encoding, row_wise, column_wise, scaling,
                   distance);
}

}  // namespace paramshard
