#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/conversion.h"
#include "client/ctl/conversion_report.h"
#include "client/ctl/options.h"
#include "common/safetensors/header.h"

namespace paramshard::ctl {
namespace {

absl::StatusOr<bool> ParseBothPlanes(absl::string_view text) {
  if (text == "row") return false;
  if (text == "both") return true;
  return absl::InvalidArgumentError(absl::StrCat("want row or both, got ", text));
}

absl::StatusOr<Format> ParsePlainDtype(absl::string_view text) {
  if (text == "F32") return Format::kFP32;
  if (text == "BF16") return Format::kBF16;
  if (text == "F16") return Format::kFP16;
  return absl::InvalidArgumentError(absl::StrCat("want F32, BF16 or F16, got ", text));
}

class ConvertCommand final : public Command {
 public:
  void AddOptions(CLI::App& app) override;
  absl::Status Check() const override;
  std::vector<std::string> Objects() const override { return {conversion_.input}; }
  absl::StatusOr<int> Run(const Context& context) override;

 private:
  EncodingOptions encoding_;
  ConversionOptions conversion_;
  bool dequantize_ = false;
  std::optional<Format> dtype_;
  std::optional<Output> report_;  // unset: as the global option says
  bool progress_ = false;         // also where standard error is no terminal
  bool quiet_ = false;
};

void ConvertCommand::AddOptions(CLI::App& app) {
  CLI::Option* const format = encoding_.AddFormat(app);
  encoding_.AddPowerOfTwoScales(app);
  CLI::Option* const rules =
      app.add_option("--rules", conversion_.rules_path,
                     "a file of lines PATTERN: FORMAT [ELEMENT], or PATTERN: KEEP; the first that matches a tensor's "
                     "name counts");
  AddParsedOption(app, "--planes", "PLANES", ParseBothPlanes, conversion_.has_columns,
                  "row or both: the planes of MXFP8 (default: row)");
  CLI::Option* const dequantize =
      app.add_flag("--dequantize", dequantize_, "decode tensors that convert or another program has quantized");
  AddParsedOption(app, "--dtype", "DTYPE", ParsePlainDtype, dtype_, "F32, BF16 or F16, to decode to (default: F32)")
      ->needs(dequantize);
  dequantize->excludes(format)->excludes(rules);
  app.add_flag("--progress", progress_, "show progress also where standard error is no terminal");
  app.add_flag("--quiet", quiet_, "the summary only");
  AddParsedOption(app, "--report", "FORMAT", ParseOutput, report_,
                  "format of the report: table or json (default: table)");
  app.add_option("input", conversion_.input, "a .safetensors file, an index.json, or a folder with either")->required();
  // Replaces the global option after the command.
  app.add_option("-o,--output", conversion_.output,
                 "a .safetensors file, or a folder for files of the input's names, created if need be")
      ->required();
}

absl::Status ConvertCommand::Check() const {
  if (encoding_.format().has_value() || dequantize_ || !conversion_.rules_path.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("--format, --rules or --dequantize is required");
}

absl::StatusOr<int> ConvertCommand::Run(const Context& context) {
  if (encoding_.format().has_value()) conversion_.encoding = encoding_.encoding();
  if (dequantize_) conversion_.dequantized_format = dtype_.value_or(Format::kFP32);
  const Streams& streams = context.streams();
  std::ostream* const out = progress_ ? &streams.err : streams.progress;
  const auto show = [&](int64_t done_bytes, int64_t all_bytes, absl::string_view tensor) {
    if (out == nullptr) return;
    *out << "\r\x1b[K" << BytesCell(done_bytes) << " of " << BytesCell(all_bytes) << ": "
         << safetensors::NameText(tensor) << std::flush;
  };
  const absl::StatusOr<ConversionReport> report = Convert(conversion_, show);
  if (out != nullptr) *out << "\r\x1b[K" << std::flush;
  RETURN_IF_ERROR(report.status());
  const bool as_table = report_.value_or(context.options().output) == Output::kTable;
  streams.out << (as_table ? ConversionText(*report, quiet_) : ConversionJsonText(*report, quiet_));
  return kSucceeded;
}

}  // namespace

const CommandInfo kConvert = {.name = "convert",
                              .help = "quantize a safetensors checkpoint, or decode a quantized one, without a daemon",
                              .asks_daemon = false,
                              .create = Create<ConvertCommand>};

}  // namespace paramshard::ctl
