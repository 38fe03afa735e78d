#include "client/ctl/options.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/encoding.h"
#include "kernels/formats/format.h"

namespace paramshard::ctl {

void AddModelArgument(CLI::App& app, std::string& model) {
  app.add_option("model", model, "name of the model")->required()->check(IsNotEmpty);
}

std::string IsNotEmpty(const std::string& text) { return text.empty() ? "want a name, got an empty one" : ""; }

absl::StatusOr<Output> ParseOutput(absl::string_view text) {
  if (text == "table") return Output::kTable;
  if (text == "json") return Output::kJson;
  return absl::InvalidArgumentError(absl::StrCat("want table or json, got ", text));
}

CLI::Option* EncodingOptions::AddFormat(CLI::App& app) {
  AddParsedOption(app, "--element", "ELEMENT", ParseElementType, element_,
                  "E4M3, E5M2 or E2M1 (default: E4M3, NVFP4_2D E2M1)");
  return AddParsedOption(app, "--format", "FORMAT", ParseFormat, format_, FormatNames());
}

void EncodingOptions::AddPowerOfTwoScales(CLI::App& app) {
  app.add_option("--power-of-two-scales", power_of_two_scales_,
                 "true or false: round scales down to powers of two (default: true for FP8_BLOCK_128X128, false for "
                 "FP8_TENSOR_CURRENT)")
      ->type_name("BOOL");
}

Encoding EncodingOptions::encoding() const {
  return MakeEncoding(format_.value_or(Format::kFP32), element_, power_of_two_scales_);
}

}  // namespace paramshard::ctl
