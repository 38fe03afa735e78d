// The fused step of any optimizer: how an extent is walked, staged and encoded while its pieces are updated.
//
// Internal to kernels/.

#ifndef PARAMSHARD_KERNELS_OPTIM_POLICY_STEP_H_
#define PARAMSHARD_KERNELS_OPTIM_POLICY_STEP_H_

#include "kernels/optim/fused_step.h"
#include "kernels/optim/piece_update.h"

namespace paramshard {

// FusedStep() with `optimizer` instead of the step's own.
float StepByPolicy(const PieceUpdate& optimizer, const OptimizerStep& step, ConstGradient gradient,
                   const OptimizerState& state, int64_t rows, int64_t cols, const Encoding& encoding,
                   MutablePlane row_wise, MutablePlane column_wise, const TensorScaling& scaling, int64_t distance = 0);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_POLICY_STEP_H_
