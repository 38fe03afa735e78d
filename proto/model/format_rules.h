// Rules on names, which give parameters their formats.
#ifndef PARAMSHARD_PROTO_MODEL_FORMAT_RULES_H_
#define PARAMSHARD_PROTO_MODEL_FORMAT_RULES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/repeated_field.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard {

// The rules of one model. They outlive it.
class FormatRules {
 public:
  explicit FormatRules(const google::protobuf::RepeatedPtrField<v1::FormatRule>& rules);

  // INVALID_ARGUMENT: too many, or a pattern that is no text.
  absl::Status Check() const;

  // The first rule that matches; null when none does. Every parameter of the model is to be matched, so that rules
  // which match none are found.
  const v1::FormatRule* Match(const std::string& name);

  // The first rule that has matched nothing; null when there is none.
  const v1::FormatRule* Unmatched() const;

 private:
  const google::protobuf::RepeatedPtrField<v1::FormatRule>& rules_;
  std::vector<bool> matched_;
};

// The parameter as the rule, which matches it, completes it. INVALID_ARGUMENT for a parameter that itself says a part
// of what only a format gives a meaning.
absl::StatusOr<v1::ParameterSpec> ApplyRule(const v1::FormatRule& rule, const v1::ParameterSpec& parameter);

}  // namespace paramshard

#endif  // PARAMSHARD_PROTO_MODEL_FORMAT_RULES_H_
