// All optimizers, with the traits that a model, its memory and its messages depend on.
//
// An optimizer's formula is a policy, the same for host and device, in a header of its own (adam_math.h):
//
//   struct AdamW {
//     static constexpr int kMomentCount = 2;  // it keeps the first 2 of kMomentKinds
//     // Steps one element in float32.
//     static void Update(const AdamStep& step, float gradient, float& master, float (&moments)[kMomentCount]);
//   };
//
// The loops of the host use the policy itself (piece_update.h). The GPU may compute the same bytes in a shorter way
// (AdamElements in adam_math_cuda.h).

#ifndef PARAMSHARD_KERNELS_OPTIM_OPTIMIZERS_H_
#define PARAMSHARD_KERNELS_OPTIM_OPTIMIZERS_H_

#include "kernels/optim/adam_math.h"
#include "kernels/optim/moment_kind.h"
#include "kernels/optim/state_types.h"

namespace paramshard {

struct OptimizerTraits {
  AdamMode mode;
  const char* name;
  // A parameter has the first `moment_count` of kMomentKinds; the others take no memory.
  int moment_count;
};

// All optimizers, by number. Code that serves every optimizer iterates over this list, or is a `switch` without
// `default`, for which the compiler names a missing optimizer.
inline constexpr OptimizerTraits kOptimizers[] = {
    {AdamMode::kAdamW, "AdamW", AdamW::kMomentCount},
    {AdamMode::kL2, "L2", AdamL2::kMomentCount},
};
inline constexpr int kOptimizerCount = sizeof(kOptimizers) / sizeof(kOptimizers[0]);

constexpr bool AreOptimizersSound() {
  for (int i = 0; i < kOptimizerCount; ++i) {
    if (static_cast<int>(kOptimizers[i].mode) != i + 1 || kOptimizers[i].moment_count > kMomentCount) return false;
  }
  return true;
}
static_assert(AreOptimizersSound(), "kOptimizers: want a row for each mode by number, with moments that exist");

// Returns true if `mode`, which may come from any number, is an optimizer. Other numbers step nothing.
constexpr bool IsAdamMode(AdamMode mode) {
  return mode >= AdamMode::kAdamW && static_cast<int>(mode) <= kOptimizerCount;
}

// Requires IsAdamMode().
constexpr const OptimizerTraits& TraitsOf(AdamMode mode) { return kOptimizers[static_cast<int>(mode) - 1]; }

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_OPTIMIZERS_H_
