#include "kernels/optim/fused_step.h"

#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/simd_clones.h"
#include "kernels/optim/adam_math.h"
#include "kernels/optim/optimizers.h"
#include "kernels/optim/piece_update.h"
#include "kernels/optim/policy_step.h"

namespace paramshard {
namespace {

PARAMSHARD_SIMD_CLONES
void UpdateByAdamW(const OptimizerStep& step, const Piece& piece) { UpdatePieceWith<AdamW>(step, piece); }

PARAMSHARD_SIMD_CLONES
void UpdateByAdam(const OptimizerStep& step, const Piece& piece) { UpdatePieceWith<Adam>(step, piece); }

PieceUpdate UpdateOf(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::kAdamW:
      return {UpdateByAdamW, AdamW::kMomentCount};
    case Optimizer::kAdam:
      return {UpdateByAdam, Adam::kMomentCount};
  }
  PARAMSHARD_CHECK(IsOptimizer(optimizer));
  return {};
}

}  // namespace

float BiasCorrection(float beta, int64_t step) {
  return static_cast<float>(1.0 - std::pow(static_cast<double>(beta), static_cast<double>(step)));
}

float FusedStep(const OptimizerStep& step, ConstGradient gradient, const OptimizerState& state, int64_t rows,
                int64_t cols, const Encoding& encoding, MutablePlane row_wise, MutablePlane column_wise,
                const TensorScaling& scaling, int64_t distance) {
  return StepByPolicy(UpdateOf(step.optimizer), step, gradient, state, rows, cols, encoding, row_wise, column_wise,
                      scaling, distance);
}

}  // namespace paramshard
