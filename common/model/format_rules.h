// Rules that give parameters their formats by their names.
#ifndef PARAMSHARD_COMMON_MODEL_FORMAT_RULES_H_
#define PARAMSHARD_COMMON_MODEL_FORMAT_RULES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/repeated_field.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard {

// The rules of one model. A view: the rules outlive it.
class FormatRules {
 public:
  explicit FormatRules(const google::protobuf::RepeatedPtrField<v1::FormatRule>& rules);

  // INVALID_ARGUMENT for too many rules, or a pattern that is not a valid name.
  absl::Status Check() const;

  // Returns the first rule that matches, or null. Call it for every parameter of the model, so that Unmatched() finds
  // rules that match none.
  const v1::FormatRule* Match(const std::string& name);

  // Returns the first rule that has matched no parameter, or null.
  const v1::FormatRule* Unmatched() const;

 private:
  const google::protobuf::RepeatedPtrField<v1::FormatRule>& rules_;
  std::vector<bool> matched_;
};

// Returns the parameter completed by the rule that matches it. INVALID_ARGUMENT for a parameter without a format that
// sets fields which belong to a format.
absl::StatusOr<v1::ParameterSpec> ApplyRule(const v1::FormatRule& rule, const v1::ParameterSpec& parameter);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_FORMAT_RULES_H_
