#include "common/model/step_pushes.h"

#include <optional>

#include "absl/strings/str_cat.h"

namespace paramshard {

absl::Status StepPushes::Check(int unit) const {
  const std::optional<int> most = MostPushesPerStep(spec_);
  if (!most.has_value() || pushes_[unit] < *most) return absl::OkStatus();
  if (spec_.accumulator_type == GradientType::kBF16) {
    return absl::FailedPreconditionError(
        absl::StrCat("push ", spec_.units[unit].name,
                     ": already pushed since the last commit, and BF16 accumulators allow one push; add up "
                     "micro-batches in the gradient slot, or commit or discard first"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "push ", spec_.units[unit].name, ": already pushed since the last commit, and the model allows ", *most,
      *most == 1 ? " push" : " pushes", " of a unit; raise pushes_per_step (accumulate= of paramshard.torch.shard), ",
      "or commit or discard first"));
}

}  // namespace paramshard
