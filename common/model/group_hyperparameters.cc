#include "common/model/group_hyperparameters.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/check.h"

namespace paramshard {
namespace {

bool IsIn(HyperparameterRange range, float value) {
  switch (range) {
    case HyperparameterRange::kNotNegative:
      return std::isfinite(value) && value >= 0;
    case HyperparameterRange::kFraction:
      return value >= 0 && value < 1;
  }
  PARAMSHARD_CHECK(false);
  return false;
}

std::string RangeText(HyperparameterRange range, absl::string_view name) {
  switch (range) {
    case HyperparameterRange::kNotNegative:
      return "a finite number >= 0";
    case HyperparameterRange::kFraction:
      return absl::StrCat("0 <= ", name, " < 1");
  }
  PARAMSHARD_CHECK(false);
  return "";
}

}  // namespace

static_assert(kHyperparameterCount == 7, "a hyper-parameter that commits do not carry");

v1::GroupHyperparameters HyperparametersToProto(const Hyperparameters& values) {
  v1::GroupHyperparameters proto;
  proto.set_learning_rate(values.learning_rate);
  proto.set_beta1(values.beta1);
  proto.set_beta2(values.beta2);
  proto.set_epsilon(values.epsilon);
  proto.set_weight_decay(values.weight_decay);
  proto.set_momentum(values.momentum);
  proto.set_dampening(values.dampening);
  return proto;
}

Hyperparameters HyperparametersFromProto(const v1::GroupHyperparameters& proto) {
  return {.learning_rate = proto.learning_rate(),
          .beta1 = proto.beta1(),
          .beta2 = proto.beta2(),
          .epsilon = proto.epsilon(),
          .weight_decay = proto.weight_decay(),
          .momentum = proto.momentum(),
          .dampening = proto.dampening()};
}

absl::Status CheckHyperparameters(int group, const Hyperparameters& values) {
  for (const auto& [member, name, range] : kHyperparameters) {
    if (IsIn(range, values.*member)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("commit group ", group, " ", name, ": want ", RangeText(range, name), ", got ", values.*member));
  }
  return absl::OkStatus();
}

}  // namespace paramshard
