// Stochastic gradient descent for one element: the formula of torch.optim.SGD, which the host loop and the device kernel
// share. Every operation is one float32 operation in the order written.

#ifndef PARAMSHARD_KERNELS_OPTIM_SGD_MATH_H_
#define PARAMSHARD_KERNELS_OPTIM_SGD_MATH_H_

#include "kernels/base/host_device.h"
#include "kernels/optim/optimizer_step.h"

namespace paramshard {

// Returns the gradient with the weight decay.
PARAMSHARD_HOST_DEVICE float SgdGradient(const OptimizerStep& step, float gradient, float master) {
  return gradient * step.gradient_scale + step.weight_decay * master;
}

// Without momentum, as a policy (optimizers.h).
struct Sgd {
  static constexpr int kMomentCount = 0;

  PARAMSHARD_HOST_DEVICE static void Update(const OptimizerStep& step, float gradient, float& master,
                                            float* /*moments*/) {
    master = master - step.learning_rate * SgdGradient(step, gradient, master);
  }
};

// With momentum, or Nesterov's. A new buffer holds zeros, and a parameter's first step has no dampening
// (MakeStep() in fused_step.h), so that the buffer begins as the gradient.
struct SgdMomentum {
  static constexpr int kMomentCount = 1;

  PARAMSHARD_HOST_DEVICE static void Update(const OptimizerStep& step, float gradient, float& master, float* moments) {
    const float g = SgdGradient(step, gradient, master);
    const float buffer = step.momentum * moments[0] + (1.0f - step.dampening) * g;
    const float change = step.optimizer == Optimizer::kSgdNesterov ? g + step.momentum * buffer : buffer;
    master = master - step.learning_rate * change;
    moments[0] = buffer;
  }
};

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_SGD_MATH_H_
