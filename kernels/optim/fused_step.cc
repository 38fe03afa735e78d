#include "kernels/optim/fused_step.h"

#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/simd_clones.h"
#include "kernels/optim/muon_math.h"
#include "kernels/optim/optimizers.h"
#include "kernels/optim/piece_update.h"
#include "kernels/optim/policy_step.h"

namespace paramshard {
namespace {

PARAMSHARD_SIMD_CLONES
void UpdateByAdamW(const OptimizerStep& step, const Piece& piece) { UpdatePieceWith<AdamW>(step, piece); }

PARAMSHARD_SIMD_CLONES
void UpdateByAdam(const OptimizerStep& step, const Piece& piece) { UpdatePieceWith<Adam>(step, piece); }

PARAMSHARD_SIMD_CLONES
void UpdateBySgd(const OptimizerStep& step, const Piece& piece) { UpdatePieceWith<Sgd>(step, piece); }

PARAMSHARD_SIMD_CLONES
void UpdateBySgdMomentum(const OptimizerStep& step, const Piece& piece) { UpdatePieceWith<SgdMomentum>(step, piece); }

PARAMSHARD_SIMD_CLONES
void UpdateByLion(const OptimizerStep& step, const Piece& piece) { UpdatePieceWith<Lion>(step, piece); }

PARAMSHARD_SIMD_CLONES
void UpdateByMuon(const OptimizerStep& step, const Piece& piece) { UpdatePieceWith<MuonMaster>(step, piece); }

PieceUpdate UpdateOf(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::kAdamW:
      return {UpdateByAdamW, AdamW::kMomentCount};
    case Optimizer::kAdam:
      return {UpdateByAdam, Adam::kMomentCount};
    case Optimizer::kSgd:
      return {UpdateBySgd, Sgd::kMomentCount};
    case Optimizer::kSgdMomentum:
    case Optimizer::kSgdNesterov:
      return {UpdateBySgdMomentum, SgdMomentum::kMomentCount};
    case Optimizer::kLion:
      return {UpdateByLion, Lion::kMomentCount};
    case Optimizer::kMuon:
    case Optimizer::kMuonNesterov:
      return {UpdateByMuon, MuonMaster::kMomentCount};
  }
  PARAMSHARD_CHECK(IsOptimizer(optimizer));
  return {};
}

}  // namespace

float BiasCorrection(float beta, int64_t step) {
  return static_cast<float>(1.0 - std::pow(static_cast<double>(beta), static_cast<double>(step)));
}

OptimizerStep MakeStep(Optimizer optimizer, const Hyperparameters& hyperparameters, bool bias_correction,
                       int64_t number, float gradient_scale) {
  OptimizerStep step = {hyperparameters, optimizer};
  if (bias_correction) {
    step.bias_correction1 = BiasCorrection(step.beta1, number);
    step.bias_correction2 = BiasCorrection(step.beta2, number);
  }
  // The momentum begins as the first gradient, as in torch.optim.SGD.
  if (number == 1) step.dampening = 0.0f;
  step.gradient_scale = gradient_scale;
  return step;
}

float FusedStep(const OptimizerStep& step, ConstGradient gradient, const OptimizerState& state, int64_t rows,
                int64_t cols, const Encoding& encoding, MutablePlane row_wise, MutablePlane column_wise,
                const TensorScaling& scaling, int64_t distance) {
  return StepByPolicy(UpdateOf(step.optimizer), step, gradient, state, rows, cols, encoding, row_wise, column_wise,
                      scaling, distance);
}

}  // namespace paramshard
