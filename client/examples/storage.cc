#include "client/examples/storage.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::examples {
namespace {

constexpr std::pair<absl::string_view, MomentType> kMomentTypes[] = {
    {"FP32", MomentType::kFP32}, {"BF16", MomentType::kBF16}, {"FP16", MomentType::kFP16}, {"FP8", MomentType::kFP8}};

absl::StatusOr<MomentType> ParseMoment(const std::string& name) {
  for (const auto& [known, type] : kMomentTypes) {
    if (known == name) return type;
  }
  return absl::InvalidArgumentError(absl::StrCat("moments: FP32, BF16, FP16 or FP8 expected, got \"", name, "\""));
}

absl::StatusOr<ElementType> ParseElement(const std::string& name, Format format) {
  if (name.empty()) return format == Format::kNVFP4_2D ? ElementType::kE2M1 : ElementType::kE4M3;
  return ParseElementType(name);
}

const std::string& FirstGiven(const std::string& flag, const std::string& otherwise) {
  return flag.empty() ? otherwise : flag;
}

}  // namespace

void AddStorageFlags(CLI::App& app, StorageFlags& flags) {
  app.add_option("--format", flags.format, "Format of the weights")->capture_default_str();
  app.add_option("--element", flags.element, "E4M3 or E5M2, for formats that have both; default: E4M3");
  app.add_option("--moments", flags.moments, "Type of the optimizer's moments: FP32, BF16, FP16 or FP8")
      ->capture_default_str();
  app.add_option("--exp-avg", flags.exp_avg, "Type of the first moment; default: as --moments");
  app.add_option("--exp-avg-sq", flags.exp_avg_sq, "Type of the second moment; default: as --moments");
}

absl::StatusOr<Storage> ParseStorage(const StorageFlags& flags) {
  Storage storage;
  ASSIGN_OR_RETURN(storage.encoding.format, ParseFormat(flags.format));
  ASSIGN_OR_RETURN(storage.encoding.element, ParseElement(flags.element, storage.encoding.format));
  ASSIGN_OR_RETURN(storage.exp_avg, ParseMoment(FirstGiven(flags.exp_avg, flags.moments)));
  ASSIGN_OR_RETURN(storage.exp_avg_sq, ParseMoment(FirstGiven(flags.exp_avg_sq, flags.moments)));
  return storage;
}

std::vector<std::string> ToArguments(const StorageFlags& flags) {
  const std::pair<absl::string_view, const std::string&> all[] = {{"--format=", flags.format},
                                                                  {"--element=", flags.element},
                                                                  {"--moments=", flags.moments},
                                                                  {"--exp-avg=", flags.exp_avg},
                                                                  {"--exp-avg-sq=", flags.exp_avg_sq}};
  std::vector<std::string> arguments;
  for (const auto& [flag, value] : all) {
    if (!value.empty()) arguments.push_back(absl::StrCat(flag, value));
  }
  return arguments;
}

void SetStorage(const Storage& storage, std::vector<UnitSpec>& units) {
  for (UnitSpec& unit : units) {
    for (ParameterSpec& parameter : unit.parameters) {
      if (parameter.shape.size() > 1) parameter.encoding = storage.encoding;
      parameter.exp_avg_type = storage.exp_avg;
      parameter.exp_avg_sq_type = storage.exp_avg_sq;
    }
  }
}

}  // namespace paramshard::examples
