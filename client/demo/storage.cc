#include "client/demo/storage.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace paramshard::demo {
namespace {

absl::StatusOr<MomentType> ParseMoment(absl::string_view name) {
  constexpr std::pair<absl::string_view, MomentType> kTypes[] = {
      {"FP32", MomentType::kFP32}, {"BF16", MomentType::kBF16}, {"FP16", MomentType::kFP16}, {"FP8", MomentType::kFP8}};
  for (const auto& [known, type] : kTypes) {
    if (known == name) return type;
  }
  return absl::InvalidArgumentError(absl::StrCat("moments: want FP32, BF16, FP16 or FP8, got \"", name, "\""));
}

absl::StatusOr<MasterType> ParseMaster(absl::string_view name) {
  if (name == "FP32") return MasterType::kFP32;
  if (name == "BF16_REMAINDER") return MasterType::kBF16Remainder;
  return absl::InvalidArgumentError(absl::StrCat("master: want FP32 or BF16_REMAINDER, got \"", name, "\""));
}

absl::StatusOr<GradientType> ParseAccumulators(absl::string_view name) {
  if (name == "FP32") return GradientType::kFP32;
  if (name == "BF16") return GradientType::kBF16;
  return absl::InvalidArgumentError(absl::StrCat("accumulators: want FP32 or BF16, got \"", name, "\""));
}

absl::StatusOr<FormatRule> ParseRule(absl::string_view text) {
  const size_t equals = text.rfind('=');
  if (equals == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("rule: want PATTERN=FORMAT, got \"", text, "\""));
  }
  FormatRule rule{.pattern = std::string(text.substr(0, equals))};
  ASSIGN_OR_RETURN(rule.encoding.format, ParseFormat(text.substr(equals + 1)));
  return rule;
}

// Returns the rule for weights that no other rule matches.
absl::StatusOr<FormatRule> LastRule(const StorageFlags& flags) {
  FormatRule rule{.pattern = "*"};
  ASSIGN_OR_RETURN(rule.encoding.format, ParseFormat(flags.format));
  if (!flags.element.empty()) {
    ASSIGN_OR_RETURN(rule.encoding.element, ParseElementType(flags.element));
  }
  if (!flags.master.empty()) {
    ASSIGN_OR_RETURN(rule.master_type, ParseMaster(flags.master));
  }
  return rule;
}

const std::string& FirstGiven(const std::string& flag, const std::string& otherwise) {
  return flag.empty() ? otherwise : flag;
}

}  // namespace

void AddStorageFlags(CLI::App& app, StorageFlags& flags) {
  app.add_option("--format", flags.format, "Format of the weights")->capture_default_str();
  app.add_option("--element", flags.element, "E4M3 or E5M2, for formats that have both; default: E4M3");
  app.add_option("--master", flags.master, "FP32, or BF16_REMAINDER with --format=BF16; default: FP32");
  app.add_option("--rule", flags.rules, "PATTERN=FORMAT: format of weights whose names match; may be repeated");
  app.add_option("--moments", flags.moments, "Type of the optimizer's moments: FP32, BF16, FP16 or FP8")
      ->capture_default_str();
  app.add_option("--exp-avg", flags.exp_avg, "Type of the first moment; default: as --moments");
  app.add_option("--exp-avg-sq", flags.exp_avg_sq, "Type of the second moment; default: as --moments");
  app.add_option("--accumulators", flags.accumulators, "Type of the daemon's sums of gradients: FP32 or BF16")
      ->capture_default_str();
}

absl::StatusOr<Storage> ParseStorage(const StorageFlags& flags) {
  Storage storage{.rules = {}};
  for (const std::string& text : flags.rules) {
    ASSIGN_OR_RETURN(storage.rules.emplace_back(), ParseRule(text));
  }
  ASSIGN_OR_RETURN(storage.rules.emplace_back(), LastRule(flags));
  ASSIGN_OR_RETURN(storage.exp_avg, ParseMoment(FirstGiven(flags.exp_avg, flags.moments)));
  ASSIGN_OR_RETURN(storage.exp_avg_sq, ParseMoment(FirstGiven(flags.exp_avg_sq, flags.moments)));
  ASSIGN_OR_RETURN(storage.accumulators, ParseAccumulators(flags.accumulators));
  return storage;
}

std::vector<std::string> ToArguments(const StorageFlags& flags) {
  std::vector<std::string> arguments;
  const auto add = [&arguments](absl::string_view flag, const std::string& value) {
    if (!value.empty()) arguments.push_back(absl::StrCat(flag, "=", value));
  };
  add("--format", flags.format);
  add("--element", flags.element);
  add("--master", flags.master);
  for (const std::string& rule : flags.rules) add("--rule", rule);
  add("--moments", flags.moments);
  add("--exp-avg", flags.exp_avg);
  add("--exp-avg-sq", flags.exp_avg_sq);
  add("--accumulators", flags.accumulators);
  return arguments;
}

void SetStorage(const Storage& storage, ModelSpec& model) {
  model.format_rules = storage.rules;
  model.accumulator_type = storage.accumulators;
  for (UnitSpec& unit : model.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      if (parameter.shape.size() < 2) parameter.encoding.format = Format::kFP32;
      parameter.exp_avg_type = storage.exp_avg;
      parameter.exp_avg_sq_type = storage.exp_avg_sq;
    }
  }
}

}  // namespace paramshard::demo
