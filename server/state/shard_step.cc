#include "server/state/shard_step.h"

#include <optional>
#include <utility>

#include "common/model/muon_matrices.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "kernels/optim/fused_step.h"
#include "kernels/optim/muon_math.h"
#include "kernels/optim/optimizers.h"

namespace paramshard::server {
namespace {

OptimizerStep StepOf(const ModelSpec& spec, int group_index, int64_t number, const StepParameters& parameters) {
  const ParameterGroup& group = spec.groups[group_index];
  return MakeStep(group.optimizer, parameters.groups[group_index], group.bias_correction, number,
                  parameters.gradient_scale);
}

}  // namespace

absl::Status StepExtents(const ShardExtents& extents, const StepParameters& parameters,
                         const std::vector<bool>& has_gradient, const StepProgress& progress,
                         ExtentArithmetic& arithmetic, absl::Span<ExtentNumbers> numbers, ScalingBook& book) {
  std::vector<std::optional<OptimizerStep>> steps(extents.trainable_count());
  for (int i = 0; i < extents.trainable_count(); ++i) {
    if (!has_gradient[i]) continue;
    const ShardExtent& extent = extents[i];
    const ParameterSpec& spec = extents.Spec(extent);
    steps[i] = StepOf(extents.spec(), spec.group, ++numbers[i].step, parameters);
    if (IsMuon(spec.optimizer)) SetMuonRates(MuonRateFactor(spec, extents.spec().groups[spec.group]), *steps[i]);
    numbers[i].awaits_amax = EncodesAfterAmax(EncodingOf(spec.encoding).format);
    if (!numbers[i].awaits_amax) numbers[i].scaling = book.Next(extent.unit, extent.parameter);
  }
  ASSIGN_OR_RETURN(const std::vector<float> amaxes,
                   arithmetic.device_arithmetic().Step(steps, arithmetic.ScalingsOf(numbers), progress));
  for (size_t i = 0; i < amaxes.size(); ++i) {
    const ShardExtent& extent = extents[static_cast<int>(i)];
    if (steps[i].has_value()) book.AddStep(extent.unit, extent.parameter, amaxes[i]);
  }
  return absl::OkStatus();
}

absl::Status EncodeSteppedExtents(const ShardExtents& extents, const ScalingBook& book, ExtentArithmetic& arithmetic,
                                  absl::Span<ExtentNumbers> numbers) {
  std::vector<bool> active;
  for (int i = 0; i < extents.trainable_count(); ++i) {
    const ShardExtent& extent = extents[i];
    if (numbers[i].awaits_amax) numbers[i].scaling = book.Present(extent.unit, extent.parameter);
    active.push_back(std::exchange(numbers[i].awaits_amax, false));
  }
  return arithmetic.device_arithmetic().EncodeAfterAmax(active, arithmetic.ScalingsOf(numbers));
}

}  // namespace paramshard::server
