#include "client/ctl/conversion_rules.h"

#include <fnmatch.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/ctl/encoding.h"
#include "client/ctl/text_lines.h"
#include "common/weights/quantized_tensor.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace paramshard::ctl {
namespace {

constexpr absl::string_view kKeep = "KEEP";
constexpr absl::string_view kPowerOfTwoScales = "power_of_two_scales=";

bool Matches(const ConversionRule& rule, const std::string& name) {
  return fnmatch(rule.pattern.c_str(), name.c_str(), 0) == 0;
}

absl::StatusOr<std::optional<Encoding>> ParseRule(absl::string_view text) {
  if (text == kKeep) return std::nullopt;
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  ASSIGN_OR_RETURN(const Format format, ParseFormat(words.empty() ? "" : words[0]));
  std::optional<ElementType> element;
  std::optional<bool> power_of_two_scales;
  for (size_t i = 1; i < words.size(); ++i) {
    absl::string_view word = words[i];
    if (absl::ConsumePrefix(&word, kPowerOfTwoScales)) {
      ASSIGN_OR_RETURN(power_of_two_scales, ParseBool(word));
    } else {
      ASSIGN_OR_RETURN(element, ParseElementType(word));
    }
  }
  const Encoding encoding = MakeEncoding(format, element, power_of_two_scales);
  RETURN_IF_ERROR(weights::CheckFileEncoding(encoding));
  return encoding;
}

}  // namespace

absl::StatusOr<ConversionRules> ConversionRules::Read(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<TextLine> lines, ReadTextLines(path));
  ConversionRules rules;
  for (const TextLine& line : lines) {
    const absl::StatusOr<std::optional<Encoding>> encoding = ParseRule(line.value);
    if (!encoding.ok()) {
      return absl::Status(encoding.status().code(), absl::StrCat(line.place, ": ", encoding.status().message()));
    }
    rules.rules_.push_back({line.key, *encoding, line.place});
  }
  return rules;
}

const ConversionRule* ConversionRules::Find(const std::string& name) const {
  for (const ConversionRule& rule : rules_) {
    if (Matches(rule, name)) return &rule;
  }
  return nullptr;
}

absl::Status ConversionRules::CheckAllMatch(const std::vector<std::string>& names) const {
  for (const ConversionRule& rule : rules_) {
    const bool matches =
        std::any_of(names.begin(), names.end(), [&](const std::string& name) { return Matches(rule, name); });
    if (matches) continue;
    return absl::InvalidArgumentError(absl::StrCat(rule.place, ": no tensor matches ", rule.pattern));
  }
  return absl::OkStatus();
}

}  // namespace paramshard::ctl
