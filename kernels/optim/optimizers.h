// All optimizers: what a model, its memory and its messages need to know of each.
//
// What an optimizer computes is a policy, one for host and device, which its header states (adam_math.h):
//
//   struct AdamW {
//     static constexpr int kMomentCount = 2;  // it keeps the first so many of kMomentKinds
//     // Steps one element in float32.
//     static void Update(const AdamStep& step, float gradient, float& master, float (&moments)[kMomentCount]);
//   };
//
// The loops of the host take a policy as it is (piece_update.h). On the GPU it may be a shorter way to the same bytes
// (AdamElements in adam_math_cuda.h).

#ifndef PARAMSHARD_KERNELS_OPTIM_OPTIMIZERS_H_
#define PARAMSHARD_KERNELS_OPTIM_OPTIMIZERS_H_

#include "kernels/optim/adam_math.h"
#include "kernels/optim/moment_kind.h"
#include "kernels/optim/optimizer_step.h"

namespace paramshard {

struct OptimizerTraits {
  AdamMode mode;
  const char* name;
  // A parameter has the first so many of kMomentKinds; the others take no memory.
  int moment_count;
};

// By number. What is to be done for each optimizer goes through this list, or is a `switch` without `default`, in which
// the compiler names one that was forgotten.
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
static_assert(AreOptimizersSound(), "kOptimizers: expected a row for each mode by number, with moments that exist");

// Whether a number that was cast to the type is an optimizer. Nothing steps with one that is none.
constexpr bool IsAdamMode(AdamMode mode) {
  return mode >= AdamMode::kAdamW && static_cast<int>(mode) <= kOptimizerCount;
}

// Requires IsAdamMode().
constexpr const OptimizerTraits& TraitsOf(AdamMode mode) { return kOptimizers[static_cast<int>(mode) - 1]; }

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_OPTIMIZERS_H_
