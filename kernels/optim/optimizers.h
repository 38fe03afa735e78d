// All optimizers, with the traits that a model, its memory and its messages depend on.
//
// An optimizer's formula is a policy, the same for host and device, in a header of its own (adam_math.h):
//
//   struct AdamW {
//     static constexpr int kMomentCount = 2;  // it keeps the first 2 of kMomentKinds
//     // Steps one element in float32. `moments` has kMomentCount elements.
//     static void Update(const OptimizerStep& step, float gradient, float& master, float* moments);
//   };
//
// The loops of the host use the policy itself (piece_update.h). The GPU may compute the same bytes in a shorter way
// (elements_cuda.h).

#ifndef PARAMSHARD_KERNELS_OPTIM_OPTIMIZERS_H_
#define PARAMSHARD_KERNELS_OPTIM_OPTIMIZERS_H_

#include "kernels/optim/adam_math.h"
#include "kernels/optim/lion_math.h"
#include "kernels/optim/moment_kind.h"
#include "kernels/optim/muon_math.h"
#include "kernels/optim/sgd_math.h"
#include "kernels/optim/state_types.h"

namespace paramshard {

struct OptimizerTraits {
  Optimizer optimizer;
  const char* name;
  // A parameter has the first `moment_count` of kMomentKinds; the others take no memory.
  int moment_count;
  // Names of these moments in messages and in the tensors of checkpoints, as the state_dict of torch.optim has them.
  const char* moment_names[kMomentCount];
};

// All optimizers, by number. Code that serves every optimizer iterates over this list, or is a `switch` without
// `default`, for which the compiler names a missing optimizer.
inline constexpr OptimizerTraits kOptimizers[] = {
    {Optimizer::kAdamW, "AdamW", AdamW::kMomentCount, {"exp_avg", "exp_avg_sq"}},
    {Optimizer::kAdam, "Adam", Adam::kMomentCount, {"exp_avg", "exp_avg_sq"}},
    {Optimizer::kSgd, "SGD", Sgd::kMomentCount, {}},
    {Optimizer::kSgdMomentum, "SGD_MOMENTUM", SgdMomentum::kMomentCount, {"momentum_buffer"}},
    {Optimizer::kSgdNesterov, "SGD_NESTEROV", SgdMomentum::kMomentCount, {"momentum_buffer"}},
    {Optimizer::kLion, "Lion", Lion::kMomentCount, {"exp_avg"}},
    {Optimizer::kMuon, "MUON", kMuonMomentCount, {"momentum_buffer"}},
    {Optimizer::kMuonNesterov, "MUON_NESTEROV", kMuonMomentCount, {"momentum_buffer"}},
};
inline constexpr int kOptimizerCount = sizeof(kOptimizers) / sizeof(kOptimizers[0]);

constexpr bool AreOptimizersSound() {
  for (int i = 0; i < kOptimizerCount; ++i) {
    const OptimizerTraits& traits = kOptimizers[i];
    if (static_cast<int>(traits.optimizer) != i + 1 || traits.moment_count > kMomentCount) return false;
    for (int moment = 0; moment < kMomentCount; ++moment) {
      if ((traits.moment_names[moment] != nullptr) != (moment < traits.moment_count)) return false;
    }
  }
  return true;
}
static_assert(AreOptimizersSound(),
              "kOptimizers: want a row for each optimizer by number, with moments that exist and their names");

// Returns true if `optimizer`, which may come from any number, is one. Other numbers step nothing.
constexpr bool IsOptimizer(Optimizer optimizer) {
  return optimizer >= Optimizer::kAdamW && static_cast<int>(optimizer) <= kOptimizerCount;
}

// Requires IsOptimizer().
constexpr const OptimizerTraits& TraitsOf(Optimizer optimizer) { return kOptimizers[static_cast<int>(optimizer) - 1]; }

// Returns true if the optimizer steps whole matrices (muon.h).
constexpr bool IsMuon(Optimizer optimizer) {
  return optimizer == Optimizer::kMuon || optimizer == Optimizer::kMuonNesterov;
}

// Returns the name that an optimizer gives to a moment; null if it does not keep it.
constexpr const char* MomentName(Optimizer optimizer, MomentKind kind) {
  return TraitsOf(optimizer).moment_names[static_cast<int>(kind)];
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_OPTIMIZERS_H_
