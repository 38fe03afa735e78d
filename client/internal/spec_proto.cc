#include "client/internal/spec_proto.h"

#include <algorithm>

namespace paramshard::internal {
namespace {

// The enumerations of the kernels and of the proto have equal numbers.
static_assert(static_cast<int>(Format::kNVFP4_2D) == v1::FORMAT_NVFP4_2D);
static_assert(static_cast<int>(Format::kMXFP8) == v1::FORMAT_MXFP8);
static_assert(static_cast<int>(ElementType::kE2M1) == v1::ELEMENT_E2M1);
static_assert(static_cast<int>(GradientType::kBF16) == v1::GRADIENT_TYPE_BF16);
static_assert(static_cast<int>(MomentType::kBF16) == v1::MOMENT_TYPE_BF16);
static_assert(static_cast<int>(AdamMode::kL2) == v1::ADAM_MODE_L2);
static_assert(static_cast<int>(GradientReduction::kSum) == v1::GRADIENT_REDUCTION_SUM);
static_assert(static_cast<int>(Phase::kBoth) == v1::PHASE_BOTH);
static_assert(static_cast<int>(TensorKind::kExpAvgSq) == v1::TENSOR_KIND_EXP_AVG_SQ);

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
  }
}

// FP32, BF16 and FP16 have no element type: whatever the encoding says is not sent.
bool HasElement(Format format) { return format != Format::kFP32 && format != Format::kBF16 && format != Format::kFP16; }

void SetParameter(const ParameterSpec& parameter, v1::ParameterSpec* proto) {
  proto->set_name(parameter.name);
  for (int64_t size : parameter.shape) proto->add_shape(size);
  proto->set_format(static_cast<v1::Format>(parameter.encoding.format));
  if (HasElement(parameter.encoding.format)) proto->set_element(static_cast<v1::Element>(parameter.encoding.element));
  proto->set_power_of_two_scales(parameter.encoding.power_of_two_scales);
  proto->set_gradient_type(static_cast<v1::GradientType>(parameter.gradient_type));
  proto->set_exp_avg_type(static_cast<v1::MomentType>(parameter.exp_avg_type));
  proto->set_exp_avg_sq_type(static_cast<v1::MomentType>(parameter.exp_avg_sq_type));
  proto->set_group(parameter.group);
  SetInitialValue(parameter.initial_value, proto->mutable_initial_value());
}

void SetUnit(const UnitSpec& unit, v1::UnitSpec* proto) {
  proto->set_name(unit.name);
  proto->set_reshard_after_forward(unit.reshard_after_forward);
  for (const ParameterSpec& parameter : unit.parameters) SetParameter(parameter, proto->add_parameters());
}

void SetGroup(const ParameterGroup& group, v1::ParameterGroup* proto) {
  proto->set_name(group.name);
  proto->set_mode(static_cast<v1::AdamMode>(group.mode));
  proto->set_bias_correction(group.bias_correction);
}

}  // namespace

v1::ModelSpec ToProto(const ModelSpec& spec) {
  v1::ModelSpec proto;
  proto.set_name(spec.name);
  for (const UnitSpec& unit : spec.units) SetUnit(unit, proto.add_units());
  for (const ParameterGroup& group : spec.groups) SetGroup(group, proto.add_groups());
  if (spec.shard_size.has_value()) proto.set_shard_size(*spec.shard_size);
  proto.set_small_parameter_bytes(spec.small_parameter_bytes);
  proto.set_gather_slots(spec.gather_slots);
  proto.set_gradient_slots(spec.gradient_slots);
  proto.set_gradient_reduction(static_cast<v1::GradientReduction>(spec.gradient_reduction));
  proto.set_seed(spec.seed);
  if (spec.step_timeout.has_value()) *proto.mutable_step_timeout() = ToProto(*spec.step_timeout);
  return proto;
}

// An infinite duration becomes the longest that a proto can say.
google::protobuf::Duration ToProto(absl::Duration duration) {
  constexpr absl::Duration kLongest = absl::Seconds(315'576'000'000);
  duration = std::clamp(duration, -kLongest, kLongest);
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  return proto;
}

}  // namespace paramshard::internal
