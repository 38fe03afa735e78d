// Muon's formulas for one element and one matrix, the same for host and device: momentum, Nesterov's look-ahead, and
// the step of the master by the orthogonalized update (orthogonalizer.h). As torch.optim.Muon has them.
//
//   m = lerp(m, g, 1 - momentum)                    g is the gradient, scaled and clipped
//   u = lerp(g, m, momentum)                        with nesterov, else m; from m as it is stored
//   O = Orthogonalizer of u as BF16
//   p = p * (1 - lr * weight_decay) - rate * O      the decay takes the rate before it is adjusted
//
// Every operation is one float32 operation in the order written. Source: Keller Jordan, "Muon: An optimizer for hidden
// layers in neural networks".

#ifndef PARAMSHARD_KERNELS_OPTIM_MUON_MATH_H_
#define PARAMSHARD_KERNELS_OPTIM_MUON_MATH_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/optim/muon_options.h"
#include "kernels/optim/optimizer_step.h"

namespace paramshard {

// It keeps the momentum.
inline constexpr int kMuonMomentCount = 1;

// The point between two values. From the end that is nearer, so that weights 0 and 1 give the ends themselves.
PARAMSHARD_HOST_DEVICE float Lerp(float start, float end, float weight) {
  const float difference = end - start;
  return weight < 0.5f ? start + weight * difference : end - difference * (1.0f - weight);
}

// Returns the momentum after a gradient that is not scaled yet.
PARAMSHARD_HOST_DEVICE float MuonMomentum(const OptimizerStep& step, float gradient, float momentum) {
  return Lerp(momentum, gradient * step.gradient_scale, 1.0f - step.momentum);
}

// Returns the element of the matrix to orthogonalize, from the momentum after the gradient.
PARAMSHARD_HOST_DEVICE float MuonUpdate(const OptimizerStep& step, float gradient, float momentum) {
  if (step.optimizer != Optimizer::kMuonNesterov) return momentum;
  return Lerp(gradient * step.gradient_scale, momentum, step.momentum);
}

// The step of the master as a policy (optimizers.h). Its gradient is the orthogonalized update, and the momentum has
// been stepped before.
struct MuonMaster {
  static constexpr int kMomentCount = 0;

  PARAMSHARD_HOST_DEVICE static void Update(const OptimizerStep& step, float orthogonal, float& master,
                                            float* /*moments*/) {
    master = master * step.kept - step.matrix_rate * orthogonal;
  }
};

// Factor of the learning rate for a matrix of [outputs, inputs].
inline double RateFactor(MuonRate rate, int64_t outputs, int64_t inputs) {
  const auto out = static_cast<double>(outputs);
  const auto in = static_cast<double>(inputs);
  switch (rate) {
    case MuonRate::kOriginal:
      return std::sqrt(std::max(1.0, out / in));
    case MuonRate::kMatchRmsAdamW:
      return 0.2 * std::sqrt(std::max(out, in));
    case MuonRate::kSpectralUnclamped:
      return std::sqrt(out / in);
  }
  return 1.0;
}

// Sets what the master's step reads, computed in double and rounded once. `factor` is a RateFactor().
inline void SetMuonRates(double factor, OptimizerStep& step) {
  const double rate = step.learning_rate;
  step.matrix_rate = static_cast<float>(rate * factor);
  step.kept = static_cast<float>(1.0 - rate * static_cast<double>(step.weight_decay));
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_MUON_MATH_H_
