#include "server/checkpoints/restore_plan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/model_spec_difference.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace paramshard::server {
namespace {

using checkpoint::ArrayKind;

absl::Status Invalid(const ModelSpec& model, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("restore ", DisplayName(model.name), ": ", message));
}

// The first parameter of `spec` that is not among the others; null when all are.
const ParameterSpec* FirstNotIn(const NameIndex& others, const ModelSpec& spec) {
  for (const UnitSpec& unit : spec.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (others.Find(parameter.name) == nullptr) return &parameter;
    }
  }
  return nullptr;
}

absl::Status CheckNames(const ModelSpec& model, const ModelSpec& saved, const NameIndex& saved_names) {
  if (model.name != saved.name) {
    return Invalid(model, absl::StrCat("want a checkpoint of this model, got one of ", DisplayName(saved.name)));
  }
  if (const ParameterSpec* const missing = FirstNotIn(saved_names, model); missing != nullptr) {
    return Invalid(model, absl::StrCat("parameter ", DisplayName(missing->name), ": not found in the checkpoint"));
  }
  if (const ParameterSpec* const extra = FirstNotIn(NameIndex(model), saved); extra != nullptr) {
    return Invalid(model, absl::StrCat("parameter ", DisplayName(extra->name), ": not found in the model"));
  }
  return absl::OkStatus();
}

// Returns the saved parameter, with everything that may differ as the model has it.
ParameterSpec Alike(const ParameterSpec& model, ParameterSpec saved, const RestorePlan::Options& options) {
  saved.encoding = model.encoding;
  saved.initial_value = model.initial_value;
  saved.placement = model.placement;
  if (saved.master_type.has_value() && model.master_type.has_value()) saved.master_type = model.master_type;
  for (const MomentTraits& moment : kMomentKinds) {
    auto& type = MomentTypeOf(saved, moment.kind);
    const auto& wanted = MomentTypeOf(model, moment.kind);
    if (options.convert_moments && type.has_value() && wanted.has_value()) type = wanted;
  }
  return saved;
}

// Returns the saved spec in the order of the model's, with everything that may differ as the model has it.
ModelSpec Alike(const ModelSpec& model, const ModelSpec& saved, const NameIndex& saved_names,
                const RestorePlan::Options& options) {
  ModelSpec alike = model;
  alike.gradient_reduction = saved.gradient_reduction;
  alike.groups = saved.groups;
  for (size_t i = 0; i < std::min(model.groups.size(), saved.groups.size()); ++i) {
    alike.groups[i].name = model.groups[i].name;
  }
  for (UnitSpec& unit : alike.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      parameter = Alike(parameter, *saved_names.Find(parameter.name), options);
    }
  }
  return alike;
}

absl::Status CheckSpecs(const ModelSpec& model, const ModelSpec& saved, const NameIndex& saved_names,
                        const RestorePlan::Options& options) {
  const std::string difference = FirstDifference(model, Alike(model, saved, saved_names, options));
  if (difference.empty()) return absl::OkStatus();
  const bool converts = FirstDifference(model, Alike(model, saved, saved_names, {.convert_moments = true})).empty();
  if (!converts) return Invalid(model, difference);
  return Invalid(model, absl::StrCat(difference, "; ask for moments to be converted, which loses bits"));
}

bool IsStoredAlike(const ParameterSpec& model, const ParameterSpec& saved, StateTensor tensor) {
  const std::optional<MomentKind> moment = MomentOf(tensor);
  if (!moment.has_value()) return model.master_type == saved.master_type;
  return MomentTypeOf(model, *moment) == MomentTypeOf(saved, *moment);
}

void AddPlanes(const ParameterSpec& model, const ParameterSpec& saved, RestorePlan::Parameter& parameter) {
  if (EncodingOf(model.encoding) == EncodingOf(saved.encoding)) {
    parameter.arrays = checkpoint::ArraysOf(saved);
    parameter.hashed = parameter.arrays;
  } else {
    parameter.tensors = {StateTensor::kMaster};
  }
}

void AddTensors(const ParameterSpec& model, const ParameterSpec& saved, RestorePlan::Parameter& parameter) {
  for (const ArrayKind kind : checkpoint::ArraysOf(saved)) {
    const checkpoint::StateForm form = *checkpoint::StateFormOf(kind);
    const bool is_stored = IsStoredAlike(model, saved, form.tensor);
    if (is_stored) {
      parameter.arrays.push_back(kind);
    } else if (form.form == TensorForm::kElements) {
      parameter.tensors.push_back(form.tensor);
    }
    // The hash of a master does not depend on how it is stored.
    if (checkpoint::HasContentHash(kind) && (is_stored || kind == ArrayKind::kMaster)) {
      parameter.hashed.push_back(kind);
    }
  }
}

// Without a master no step follows, and the history of scales does not matter.
bool KeepsScaling(const ParameterSpec& model, const ParameterSpec& saved) {
  const Encoding encoding = EncodingOf(model.encoding);
  if (!NeedsAmax(encoding.format) || encoding != EncodingOf(saved.encoding)) return false;
  const DelayedScaling::Options defaults;
  return checkpoint::PlanesAreState(model) ||
         model.encoding.delayed_scaling.value_or(defaults) == saved.encoding.delayed_scaling.value_or(defaults);
}

}  // namespace

absl::StatusOr<RestorePlan> RestorePlan::Create(const ModelSpec& model, const ModelSpec& saved,
                                                const Options& options) {
  const NameIndex saved_names(saved);
  RETURN_IF_ERROR(CheckNames(model, saved, saved_names));
  RETURN_IF_ERROR(CheckSpecs(model, saved, saved_names, options));
  RestorePlan plan;
  for (int unit = 0; unit < static_cast<int>(model.units.size()); ++unit) {
    const auto& parameters = model.units[unit].parameters;
    for (int i = 0; i < static_cast<int>(parameters.size()); ++i) {
      const ParameterSpec& spec = parameters[i];
      const ParameterSpec& saved_spec = *saved_names.Find(spec.name);
      Parameter& parameter = plan.parameters_.emplace_back();
      parameter.saved = *saved_names.PlaceOf(spec.name);
      parameter.place = {.unit = unit, .parameter = i};
      parameter.keeps_scaling = KeepsScaling(spec, saved_spec);
      if (checkpoint::PlanesAreState(spec)) {
        AddPlanes(spec, saved_spec, parameter);
      } else {
        AddTensors(spec, saved_spec, parameter);
      }
    }
  }
  return plan;
}

}  // namespace paramshard::server
