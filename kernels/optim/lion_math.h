// Lion for one element (Chen et al., "Symbolic Discovery of Optimization Algorithms", arXiv:2302.06675, algorithm 2): the
// formula that the host loop and the device kernel share. Every operation is one float32 operation in the order written.

#ifndef PARAMSHARD_KERNELS_OPTIM_LION_MATH_H_
#define PARAMSHARD_KERNELS_OPTIM_LION_MATH_H_

#include "kernels/base/host_device.h"
#include "kernels/optim/optimizer_step.h"

namespace paramshard {

// Lion as a policy (optimizers.h).
struct Lion {
  static constexpr int kMomentCount = 1;

  PARAMSHARD_HOST_DEVICE static void Update(const OptimizerStep& step, float gradient, float& master, float* moments) {
    const float g = gradient * step.gradient_scale;
    const float direction = step.beta1 * moments[0] + (1.0f - step.beta1) * g;
    // Zeros and NaN stay.
    const float sign = direction > 0.0f ? 1.0f : (direction < 0.0f ? -1.0f : direction);
    master = master * (1.0f - step.learning_rate * step.weight_decay) - step.learning_rate * sign;
    moments[0] = step.beta2 * moments[0] + (1.0f - step.beta2) * g;
  }
};

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_LION_MATH_H_
