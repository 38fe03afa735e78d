// One step of an optimizer: the same for every element of a parameter group.

#ifndef PARAMSHARD_KERNELS_OPTIM_OPTIMIZER_STEP_H_
#define PARAMSHARD_KERNELS_OPTIM_OPTIMIZER_STEP_H_

#include <cstdint>

#include "kernels/optim/hyperparameters.h"
#include "kernels/optim/state_types.h"

namespace paramshard {

struct OptimizerStep : Hyperparameters {
  Optimizer optimizer = Optimizer::kAdamW;
  // BiasCorrection(beta, step), or 1 without bias correction.
  float bias_correction1 = 1.0f;
  float bias_correction2 = 1.0f;
  // Factor of gradients, applied first: inverse loss scale, mean and clip in one float.
  float gradient_scale = 1.0f;
  // Muon: the learning rate of a matrix (RateFactor() in muon_math.h), and the part of a master that the weight decay
  // leaves.
  float matrix_rate = 0.0f;
  float kept = 1.0f;
};

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_OPTIMIZER_STEP_H_
