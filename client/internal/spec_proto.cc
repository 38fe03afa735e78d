#include "client/internal/spec_proto.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "proto/durations.h"

namespace paramshard::internal {
namespace {

// The enumerations of the kernels and of the proto have equal numbers.
static_assert(std::size(kFormats) == v1::Format_MAX);
static_assert(static_cast<int>(ElementType::kE2M1) == v1::ELEMENT_E2M1);
static_assert(static_cast<int>(GradientType::kBF16) == v1::GRADIENT_TYPE_BF16);
static_assert(static_cast<int>(MomentType::kFP8) == v1::MOMENT_TYPE_FP8);
static_assert(static_cast<int>(MasterType::kBF16Remainder) == v1::MASTER_TYPE_BF16_REMAINDER);
static_assert(static_cast<int>(DelayedScaling::Algorithm::kMostRecent) == v1::AMAX_ALGORITHM_MOST_RECENT);
static_assert(static_cast<int>(AdamMode::kL2) == v1::ADAM_MODE_L2);
static_assert(static_cast<int>(GradientReduction::kSum) == v1::GRADIENT_REDUCTION_SUM);
static_assert(static_cast<int>(GradientSums::kAtPush) == v1::GRADIENT_SUMS_AT_PUSH);
static_assert(static_cast<int>(Phase::kBoth) == v1::PHASE_BOTH);
static_assert(static_cast<int>(TensorKind::kExpAvgSqScales) == v1::TENSOR_KIND_EXP_AVG_SQ_SCALES);
static_assert(static_cast<int>(TensorType::kInt16) == v1::TENSOR_TYPE_INT16);

void SetInitialValue(const InitialValue& value, v1::InitialValue* proto) {
  switch (value.kind) {
    case Initializer::kZeros:
      return;
    case Initializer::kOnes:
      proto->mutable_constant()->set_value(1.0f);
      return;
    case Initializer::kConstant:
      proto->mutable_constant()->set_value(value.a);
      return;
    case Initializer::kNormal:
      proto->mutable_normal()->set_mean(value.a);
      proto->mutable_normal()->set_standard_deviation(value.b);
      return;
    case Initializer::kUniform:
      proto->mutable_uniform()->set_low(value.a);
      proto->mutable_uniform()->set_high(value.b);
      return;
    case Initializer::kTruncatedNormal:
      proto->mutable_truncated_normal()->set_mean(value.a);
      proto->mutable_truncated_normal()->set_standard_deviation(value.b);
      proto->mutable_truncated_normal()->set_low(value.low);
      proto->mutable_truncated_normal()->set_high(value.high);
      return;
  }
}

void SetDelayedScaling(const DelayedScaling::Options& scaling, v1::DelayedScaling* proto) {
  constexpr int64_t kLongest = INT32_MAX;  // more is refused as well
  proto->set_algorithm(static_cast<v1::AmaxAlgorithm>(scaling.algorithm));
  proto->set_history_length(static_cast<int32_t>(std::clamp<int64_t>(scaling.history_length, -1, kLongest)));
  proto->set_margin(scaling.margin);
}

// Sets what ParameterSpec and FormatRule both have, in the header and in the proto.
template <typename Spec, typename Proto>
void SetStorage(const Spec& spec, Proto* proto) {
  const EncodingSpec& encoding = spec.encoding;
  if (encoding.format.has_value()) proto->set_format(static_cast<v1::Format>(*encoding.format));
  if (encoding.element.has_value()) proto->set_element(static_cast<v1::Element>(*encoding.element));
  if (encoding.power_of_two_scales.has_value()) proto->set_power_of_two_scales(*encoding.power_of_two_scales);
  if (encoding.delayed_scaling.has_value()) {
    SetDelayedScaling(*encoding.delayed_scaling, proto->mutable_delayed_scaling());
  }
  if (spec.exp_avg_type.has_value()) proto->set_exp_avg_type(static_cast<v1::MomentType>(*spec.exp_avg_type));
  if (spec.exp_avg_sq_type.has_value()) proto->set_exp_avg_sq_type(static_cast<v1::MomentType>(*spec.exp_avg_sq_type));
  if (spec.master_type.has_value()) proto->set_master_type(static_cast<v1::MasterType>(*spec.master_type));
}

void SetParameter(const ParameterSpec& parameter, bool has_rules, v1::ParameterSpec* proto) {
  proto->set_name(parameter.name);
  for (int64_t size : parameter.shape) proto->add_shape(size);
  SetStorage(parameter, proto);
  if (!has_rules && !parameter.encoding.format.has_value()) proto->set_format(v1::FORMAT_FP32);
  proto->set_gradient_type(static_cast<v1::GradientType>(parameter.gradient_type));
  proto->set_group(parameter.group);
  SetInitialValue(parameter.initial_value, proto->mutable_initial_value());
}

void SetUnit(const UnitSpec& unit, bool has_rules, v1::UnitSpec* proto) {
  proto->set_name(unit.name);
  proto->set_reshard_after_forward(unit.reshard_after_forward);
  for (const ParameterSpec& parameter : unit.parameters) SetParameter(parameter, has_rules, proto->add_parameters());
}

void SetGroup(const ParameterGroup& group, v1::ParameterGroup* proto) {
  proto->set_name(group.name);
  proto->set_mode(static_cast<v1::AdamMode>(group.mode));
  proto->set_bias_correction(group.bias_correction);
}

InitialValue ToInitialValue(const v1::InitialValue& proto) {
  switch (proto.kind_case()) {
    case v1::InitialValue::kConstant:
      return {Initializer::kConstant, proto.constant().value()};
    case v1::InitialValue::kNormal:
      return {Initializer::kNormal, proto.normal().mean(), proto.normal().standard_deviation()};
    case v1::InitialValue::kUniform:
      return {Initializer::kUniform, proto.uniform().low(), proto.uniform().high()};
    case v1::InitialValue::kTruncatedNormal: {
      const v1::InitialValue::TruncatedNormal& normal = proto.truncated_normal();
      return {Initializer::kTruncatedNormal, normal.mean(), normal.standard_deviation(), normal.low(), normal.high()};
    }
    case v1::InitialValue::KIND_NOT_SET:
      break;
  }
  return {};
}

ParameterSpec ToParameter(const v1::ParameterSpec& proto) {
  ParameterSpec spec;
  spec.name = proto.name();
  spec.shape.assign(proto.shape().begin(), proto.shape().end());
  spec.encoding.format = static_cast<Format>(proto.format());
  spec.encoding.element = static_cast<ElementType>(proto.element());
  spec.encoding.power_of_two_scales = proto.power_of_two_scales();
  if (proto.has_delayed_scaling()) {
    const v1::DelayedScaling& scaling = proto.delayed_scaling();
    spec.encoding.delayed_scaling = {static_cast<DelayedScaling::Algorithm>(scaling.algorithm()),
                                     scaling.history_length(), scaling.margin()};
  }
  spec.gradient_type = static_cast<GradientType>(proto.gradient_type());
  spec.exp_avg_type = static_cast<MomentType>(proto.exp_avg_type());
  spec.exp_avg_sq_type = static_cast<MomentType>(proto.exp_avg_sq_type());
  spec.master_type = static_cast<MasterType>(proto.master_type());
  spec.group = proto.group();
  spec.initial_value = ToInitialValue(proto.initial_value());
  return spec;
}

UnitSpec ToUnit(const v1::UnitSpec& proto) {
  UnitSpec spec;
  spec.name = proto.name();
  spec.reshard_after_forward = proto.reshard_after_forward();
  for (const v1::ParameterSpec& parameter : proto.parameters()) spec.parameters.push_back(ToParameter(parameter));
  return spec;
}

}  // namespace

v1::ModelSpec ToProto(const ModelSpec& spec) {
  v1::ModelSpec proto;
  proto.set_name(spec.name);
  for (const UnitSpec& unit : spec.units) SetUnit(unit, !spec.format_rules.empty(), proto.add_units());
  for (const ParameterGroup& group : spec.groups) SetGroup(group, proto.add_groups());
  if (spec.shard_size.has_value()) proto.set_shard_size(*spec.shard_size);
  proto.set_small_parameter_bytes(spec.small_parameter_bytes);
  proto.set_gather_slots(spec.gather_slots);
  if (spec.large_gather_slots.has_value()) proto.set_large_gather_slots(*spec.large_gather_slots);
  proto.set_gradient_slots(spec.gradient_slots);
  proto.set_gradient_reduction(static_cast<v1::GradientReduction>(spec.gradient_reduction));
  proto.set_seed(spec.seed);
  if (spec.step_timeout.has_value()) *proto.mutable_step_timeout() = DurationToProto(*spec.step_timeout);
  for (const FormatRule& rule : spec.format_rules) {
    v1::FormatRule* rule_proto = proto.add_format_rules();
    rule_proto->set_pattern(rule.pattern);
    SetStorage(rule, rule_proto);
  }
  if (spec.gradient_sums.has_value()) proto.set_gradient_sums(static_cast<v1::GradientSums>(*spec.gradient_sums));
  return proto;
}

ModelSpec FromProto(const v1::ModelSpec& proto) {
  ModelSpec spec;
  spec.name = proto.name();
  for (const v1::UnitSpec& unit : proto.units()) spec.units.push_back(ToUnit(unit));
  for (const v1::ParameterGroup& group : proto.groups()) {
    spec.groups.push_back({group.name(), static_cast<AdamMode>(group.mode()), group.bias_correction()});
  }
  if (proto.has_shard_size()) spec.shard_size = proto.shard_size();
  spec.small_parameter_bytes = proto.small_parameter_bytes();
  spec.gather_slots = proto.gather_slots();
  spec.large_gather_slots = proto.has_large_gather_slots() ? proto.large_gather_slots() : 1;
  spec.gradient_slots = proto.gradient_slots();
  spec.gradient_reduction = static_cast<GradientReduction>(proto.gradient_reduction());
  spec.seed = proto.seed();
  if (proto.has_step_timeout()) {
    spec.step_timeout = absl::Seconds(proto.step_timeout().seconds()) + absl::Nanoseconds(proto.step_timeout().nanos());
  }
  if (proto.gradient_sums() != v1::GRADIENT_SUMS_UNSPECIFIED) {
    spec.gradient_sums = static_cast<GradientSums>(proto.gradient_sums());
  }
  return spec;
}

Encoding ToEncoding(const EncodingSpec& spec) {
  PARAMSHARD_CHECK(spec.format.has_value() && spec.element.has_value() && spec.power_of_two_scales.has_value());
  return {*spec.format, *spec.element, *spec.power_of_two_scales};
}

}  // namespace paramshard::internal
