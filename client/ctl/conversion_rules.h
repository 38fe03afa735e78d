// Rules that choose by name which tensors of a checkpoint a conversion encodes, and how.
#ifndef PARAMSHARD_CLIENT_CTL_CONVERSION_RULES_H_
#define PARAMSHARD_CLIENT_CTL_CONVERSION_RULES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/formats/format_id.h"

namespace paramshard::ctl {

// One rule. Its pattern is for whole names, in the syntax of fnmatch(3) without flags, as in a model's format rules.
struct ConversionRule {
  std::string pattern;
  std::optional<Encoding> encoding;  // none: the tensor is copied unchanged
  std::string place;                 // file and line
};

// Rules in their order. A file has one to a line:
//
//   # pattern: FORMAT [ELEMENT] [power_of_two_scales=true|false], or KEEP
//   *norm*: KEEP
//   lm_head.weight: BF16
//   *: MXFP8 E4M3
class ConversionRules {
 public:
  ConversionRules() = default;

  // Errors of ReadTextLines; INVALID_ARGUMENT names the line of an encoding that files cannot have.
  static absl::StatusOr<ConversionRules> Read(const std::string& path);

  // Returns the first rule that matches; null when none does.
  const ConversionRule* Find(const std::string& name) const;

  // INVALID_ARGUMENT naming a rule that matches none of the names.
  absl::Status CheckAllMatch(const std::vector<std::string>& names) const;

 private:
  std::vector<ConversionRule> rules_;
};

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_CONVERSION_RULES_H_
