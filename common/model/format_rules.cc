#include "common/model/format_rules.h"

#include <fnmatch.h>

#include "absl/strings/str_cat.h"
#include "common/model/limits.h"
#include "common/model/moment_fields.h"
#include "common/model/names.h"

namespace paramshard {

FormatRules::FormatRules(const google::protobuf::RepeatedPtrField<v1::FormatRule>& rules)
    : rules_(rules), matched_(rules.size()) {}

absl::Status FormatRules::Check() const {
  if (rules_.size() > kMaxFormatRules) {
    return absl::InvalidArgumentError(
        absl::StrCat("want at most ", kMaxFormatRules, " format rules, got ", rules_.size()));
  }
  for (int i = 0; i < rules_.size(); ++i) {
    if (const absl::Status status = CheckName(rules_[i].pattern()); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("pattern of format rule ", i, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

const v1::FormatRule* FormatRules::Match(const std::string& name) {
  const v1::FormatRule* first = nullptr;
  for (int i = 0; i < rules_.size(); ++i) {
    if (first != nullptr && matched_[i]) continue;
    if (fnmatch(rules_[i].pattern().c_str(), name.c_str(), 0) != 0) continue;
    matched_[i] = true;
    if (first == nullptr) first = &rules_[i];
  }
  return first;
}

const v1::FormatRule* FormatRules::Unmatched() const {
  for (int i = 0; i < rules_.size(); ++i) {
    if (!matched_[i]) return &rules_[i];
  }
  return nullptr;
}

absl::StatusOr<v1::ParameterSpec> ApplyRule(const v1::FormatRule& rule, const v1::ParameterSpec& parameter) {
  if (parameter.element() != v1::ELEMENT_UNSPECIFIED || parameter.has_power_of_two_scales() ||
      parameter.has_delayed_scaling()) {
    return absl::InvalidArgumentError("element, power_of_two_scales and delayed_scaling require a format");
  }
  v1::ParameterSpec complete = parameter;
  complete.set_format(rule.format());
  complete.set_element(rule.element());
  if (rule.has_power_of_two_scales()) complete.set_power_of_two_scales(rule.power_of_two_scales());
  if (rule.has_delayed_scaling()) *complete.mutable_delayed_scaling() = rule.delayed_scaling();
  if (parameter.has_trainable() && !parameter.trainable()) return complete;
  for (const MomentTraits& moment : kMomentKinds) {
    if (MomentTypeIn(complete, moment.kind) != v1::MOMENT_TYPE_UNSPECIFIED) continue;
    SetMomentType(complete, moment.kind, MomentTypeIn(rule, moment.kind));
  }
  if (complete.master_type() == v1::MASTER_TYPE_UNSPECIFIED) complete.set_master_type(rule.master_type());
  return complete;
}

}  // namespace paramshard
