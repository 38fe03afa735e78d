#include "common/model/step_pushes.h"

#include "absl/strings/str_cat.h"

namespace paramshard {

absl::Status StepPushes::Check(int unit) const {
  if (!pushed_[unit] || spec_.accumulator_type == GradientType::kFP32) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("push ", spec_.units[unit].name,
                   ": already pushed since the last commit, and BF16 accumulators allow one push; add up "
                   "micro-batches in the gradient slot, or commit or discard first"));
}

}  // namespace paramshard
