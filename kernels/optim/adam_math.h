// Adam for one element: the formula that the host loop and the device kernel share.
//
// Every operation is one float32 operation in the order written. The parameter uses the fresh float32 moments; they are
// rounded to their stored type afterwards. AMSGrad is not supported.

#ifndef PARAMSHARD_KERNELS_OPTIM_ADAM_MATH_H_
#define PARAMSHARD_KERNELS_OPTIM_ADAM_MATH_H_

#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/optim/moment_kind.h"
#include "kernels/optim/optimizer_step.h"

namespace paramshard {

// Use of the weight decay, the only difference between Adam and AdamW, for every loop and kernel.
enum class WeightDecay : uint8_t { kOfParameter, kOfGradient };

// Requires Adam or AdamW.
constexpr WeightDecay DecayOf(Optimizer optimizer) {
  return optimizer == Optimizer::kAdam ? WeightDecay::kOfGradient : WeightDecay::kOfParameter;
}

// The optimizer's state of one element, as float32.
struct AdamElement {
  float master;
  float exp_avg;
  float exp_avg_sq;
};

// Returns the element after the step. `kDecay` is DecayOf(step.optimizer).
template <WeightDecay kDecay>
PARAMSHARD_HOST_DEVICE AdamElement UpdateAdamElement(const OptimizerStep& step, float gradient, AdamElement old) {
  float g = gradient * step.gradient_scale;
  if (kDecay == WeightDecay::kOfGradient) g = g + step.weight_decay * old.master;
  AdamElement fresh;
  fresh.exp_avg = step.beta1 * old.exp_avg + (1.0f - step.beta1) * g;
  fresh.exp_avg_sq = step.beta2 * old.exp_avg_sq + ((1.0f - step.beta2) * g) * g;
  const float denominator = sqrtf(fresh.exp_avg_sq / step.bias_correction2) + step.epsilon;
  float change = (fresh.exp_avg / step.bias_correction1) / denominator;
  if (kDecay == WeightDecay::kOfParameter) change = change + step.weight_decay * old.master;
  fresh.master = old.master - step.learning_rate * change;
  return fresh;
}

// Adam as a policy (optimizers.h).
template <WeightDecay kDecay>
struct AdamPolicy {
  static constexpr int kMomentCount = 2;
  static constexpr int kExpAvg = static_cast<int>(MomentKind::kFirst);
  static constexpr int kExpAvgSq = static_cast<int>(MomentKind::kSecond);

  PARAMSHARD_HOST_DEVICE static void Update(const OptimizerStep& step, float gradient, float& master, float* moments) {
    const AdamElement old = {master, moments[kExpAvg], moments[kExpAvgSq]};
    const AdamElement fresh = UpdateAdamElement<kDecay>(step, gradient, old);
    master = fresh.master;
    moments[kExpAvg] = fresh.exp_avg;
    moments[kExpAvgSq] = fresh.exp_avg_sq;
  }
};

using AdamW = AdamPolicy<DecayOf(Optimizer::kAdamW)>;
using Adam = AdamPolicy<DecayOf(Optimizer::kAdam)>;

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_ADAM_MATH_H_
