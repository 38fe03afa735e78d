#include "proto/model/step_pushes.h"

#include "absl/strings/str_cat.h"

namespace paramshard {

absl::Status StepPushes::Check(int unit) const {
  if (!pushed_[unit] || spec_.accumulator_type == GradientType::kFP32) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("push ", spec_.units[unit].name,
                   ": one push between two commits expected where accumulators are BF16, got a second; add "
                   "micro-batches up in the gradient slot, or commit or discard before"));
}

}  // namespace paramshard
