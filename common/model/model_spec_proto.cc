#include "common/model/model_spec_proto.h"

#include <algorithm>

#include "common/model/moment_fields.h"
#include "common/rpc/durations.h"
#include "kernels/optim/optimizers.h"

namespace paramshard {
namespace {

v1::InitialValue ToProto(const InitialValue& value) {
  v1::InitialValue proto;
  switch (value.kind) {
    case Initializer::kZeros:
      proto.mutable_constant()->set_value(0);
      break;
    case Initializer::kOnes:
      proto.mutable_constant()->set_value(1);
      break;
    case Initializer::kConstant:
      proto.mutable_constant()->set_value(value.a);
      break;
    case Initializer::kNormal:
      proto.mutable_normal()->set_mean(value.a);
      proto.mutable_normal()->set_standard_deviation(value.b);
      break;
    case Initializer::kUniform:
      proto.mutable_uniform()->set_low(value.a);
      proto.mutable_uniform()->set_high(value.b);
      break;
    case Initializer::kTruncatedNormal:
      proto.mutable_truncated_normal()->set_mean(value.a);
      proto.mutable_truncated_normal()->set_standard_deviation(value.b);
      proto.mutable_truncated_normal()->set_low(value.low);
      proto.mutable_truncated_normal()->set_high(value.high);
      break;
  }
  proto.set_zero_begin(value.zero_begin);
  proto.set_zero_end(value.zero_end);
  return proto;
}

v1::DelayedScaling ToProto(const DelayedScaling::Options& scaling) {
  constexpr int64_t kLongest = INT32_MAX;  // a larger value is refused as well
  v1::DelayedScaling proto;
  proto.set_algorithm(static_cast<v1::AmaxAlgorithm>(scaling.algorithm));
  proto.set_history_length(static_cast<int32_t>(std::clamp<int64_t>(scaling.history_length, -1, kLongest)));
  proto.set_margin(scaling.margin);
  return proto;
}

// Sets the fields that ParameterSpec and FormatRule share, as structs and as messages. Enums of the proto and of the
// kernels share their numbers (model_spec_parser.cc asserts it).
template <typename Spec, typename Proto>
void SetStorage(const Spec& spec, Proto& proto) {
  const EncodingSpec& encoding = spec.encoding;
  if (encoding.format.has_value()) proto.set_format(static_cast<v1::Format>(*encoding.format));
  if (encoding.element.has_value()) proto.set_element(static_cast<v1::Element>(*encoding.element));
  if (encoding.power_of_two_scales.has_value()) proto.set_power_of_two_scales(*encoding.power_of_two_scales);
  if (encoding.delayed_scaling.has_value()) *proto.mutable_delayed_scaling() = ToProto(*encoding.delayed_scaling);
  for (const MomentTraits& moment : kMomentKinds) {
    const std::optional<MomentType> type = MomentTypeOf(spec, moment.kind);
    if (type.has_value()) SetMomentType(proto, moment.kind, static_cast<v1::MomentType>(*type));
  }
  if (spec.master_type.has_value()) proto.set_master_type(static_cast<v1::MasterType>(*spec.master_type));
}

v1::ParameterSpec ToProto(const ParameterSpec& spec, bool has_rules) {
  v1::ParameterSpec proto;
  proto.set_name(spec.name);
  proto.mutable_shape()->Add(spec.shape.begin(), spec.shape.end());
  SetStorage(spec, proto);
  if (!has_rules && !spec.encoding.format.has_value()) proto.set_format(v1::FORMAT_FP32);
  proto.set_gradient_type(static_cast<v1::GradientType>(spec.gradient_type));
  proto.set_group(spec.group);
  *proto.mutable_initial_value() = ToProto(spec.initial_value);
  // These are unset where they are the default, so that models that do not use them keep their fingerprints.
  if (!spec.trainable) proto.set_trainable(false);
  if (spec.transposed) proto.set_transposed(true);
  proto.mutable_split_rows()->Add(spec.split_rows.begin(), spec.split_rows.end());
  if (spec.placement != Placement::kCut) proto.set_placement(static_cast<v1::Placement>(spec.placement));
  return proto;
}

v1::UnitSpec ToProto(const UnitSpec& spec, bool has_rules) {
  v1::UnitSpec proto;
  proto.set_name(spec.name);
  for (const ParameterSpec& parameter : spec.parameters) *proto.add_parameters() = ToProto(parameter, has_rules);
  proto.set_reshard_after_forward(spec.reshard_after_forward);
  return proto;
}

v1::ParameterGroup ToProto(const ParameterGroup& group) {
  v1::ParameterGroup proto;
  proto.set_name(group.name);
  proto.set_optimizer(static_cast<v1::Optimizer>(group.optimizer));
  proto.set_bias_correction(group.bias_correction);
  if (!IsMuon(group.optimizer)) return proto;
  proto.mutable_muon()->set_rate(static_cast<v1::MuonRate>(group.muon.rate));
  for (const NewtonSchulzStep& step : group.muon.steps) {
    v1::NewtonSchulzStep& added = *proto.mutable_muon()->add_steps();
    added.set_a(step.a);
    added.set_b(step.b);
    added.set_c(step.c);
  }
  return proto;
}

v1::FormatRule ToProto(const FormatRule& rule) {
  v1::FormatRule proto;
  proto.set_pattern(rule.pattern);
  SetStorage(rule, proto);
  return proto;
}

}  // namespace

v1::ModelSpec ModelSpecToProto(const ModelSpec& spec) {
  v1::ModelSpec proto;
  proto.set_name(spec.name);
  for (const UnitSpec& unit : spec.units) *proto.add_units() = ToProto(unit, !spec.format_rules.empty());
  for (const ParameterGroup& group : spec.groups) *proto.add_groups() = ToProto(group);
  if (spec.groups.empty()) *proto.add_groups() = ToProto(ParameterGroup());
  if (spec.shard_size.has_value()) proto.set_shard_size(*spec.shard_size);
  proto.set_small_parameter_bytes(spec.small_parameter_bytes);
  proto.set_gather_slots(spec.gather_slots);
  // Unset where it is the default, so that models which do not use it keep their fingerprints.
  if (spec.large_gather_slots != 1) proto.set_large_gather_slots(spec.large_gather_slots);
  proto.set_gradient_slots(spec.gradient_slots);
  proto.set_gradient_reduction(static_cast<v1::GradientReduction>(spec.gradient_reduction));
  proto.set_seed(spec.seed);
  if (spec.step_timeout.has_value()) *proto.mutable_step_timeout() = DurationToProto(*spec.step_timeout);
  for (const FormatRule& rule : spec.format_rules) *proto.add_format_rules() = ToProto(rule);
  if (spec.gradient_sums.has_value()) proto.set_gradient_sums(static_cast<v1::GradientSums>(*spec.gradient_sums));
  // Unset where it is the default, for the same reason.
  if (spec.accumulator_type != GradientType::kFP32) {
    proto.set_accumulator_type(static_cast<v1::GradientType>(spec.accumulator_type));
  }
  if (spec.pushes_per_step.has_value()) proto.set_pushes_per_step(*spec.pushes_per_step);
  return proto;
}

}  // namespace paramshard
