#include <filesystem>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/hugging_face_export.h"
#include "client/ctl/options.h"
#include "client/ctl/terminal_text.h"
#include "common/checkpoint/step_folder.h"
#include "common/safetensors/header.h"
#include "nlohmann/json.hpp"

namespace paramshard::ctl {
namespace {

using safetensors::Dtype;

enum class Layout { kHuggingFace };

absl::StatusOr<Layout> ParseLayout(absl::string_view text) {
  if (text == "hf") return Layout::kHuggingFace;
  return absl::InvalidArgumentError(absl::StrCat("want hf, got ", text));
}

absl::StatusOr<Dtype> ParseMasterDtype(absl::string_view text) {
  const std::optional<Dtype> dtype = safetensors::ParseDtype(text);
  if (dtype == Dtype::kF32 || dtype == Dtype::kBF16 || dtype == Dtype::kF16) return *dtype;
  return absl::InvalidArgumentError(absl::StrCat("want F32, BF16 or F16, got ", text));
}

std::string ReportText(const HuggingFaceExportReport& report, const std::string& out) {
  std::string text;
  for (const std::string& note : report.notes) absl::StrAppend(&text, "note: ", TerminalText(note), "\n");
  for (const std::string& name : report.tied_tensors) {
    absl::StrAppend(&text, "tied, and left out: ", TerminalText(name), "\n");
  }
  return absl::StrCat(text, "step ", report.step, " of ", TerminalText(report.model), ": ", report.tensor_count,
                      " tensors, ", BytesCell(report.size_bytes), ", in ", report.weight_files.size(),
                      report.weight_files.size() == 1 ? " file" : " files", ", and ", report.carried_files.size(),
                      report.carried_files.size() == 1 ? " file beside: " : " files beside: ", TerminalText(out), "\n");
}

nlohmann::ordered_json ReportJson(const HuggingFaceExportReport& report, const std::string& out) {
  return {{"folder", out},
          {"model", report.model},
          {"step", absl::StrCat(report.step)},
          {"tensorCount", absl::StrCat(report.tensor_count)},
          {"sizeBytes", absl::StrCat(report.size_bytes)},
          {"weightFiles", report.weight_files},
          {"carriedFiles", report.carried_files},
          {"tiedTensors", report.tied_tensors},
          {"notes", report.notes}};
}

class Export final : public Command {
 public:
  void AddOptions(CLI::App& app) override;
  std::vector<std::string> Objects() const override { return {checkpoint_}; }
  absl::StatusOr<int> Run(const Context& context) override;

 private:
  // Returns the folder of the checkpoint.
  absl::StatusOr<std::string> FindFolder() const;

  std::string checkpoint_;
  std::string model_folder_;
  Layout layout_ = Layout::kHuggingFace;
  HuggingFaceExportOptions options_;
  bool quiet_ = false;
};

void Export::AddOptions(CLI::App& app) {
  app.add_option("checkpoint", checkpoint_,
                 "the folder of a checkpoint; with --dir latest, a step, or the name of a folder")
      ->required();
  app.add_option("--dir", model_folder_, "a model's folder of checkpoints, ROOT/MODEL");
  AddParsedOption(app, "--format", "FORMAT", ParseLayout, layout_, "hf: a folder that transformers opens")->required();
  app.add_option("--like", options_.like,
                 "a folder of the same model as transformers writes it: names, shapes and types of tensors, config and "
                 "tokenizer are taken from it")
      ->required();
  CLI::Option* const dtype = AddParsedOption(app, "--dtype", "DTYPE", ParseMasterDtype, options_.dtype,
                                             "F32, BF16 or F16, for all tensors (default: the types in --like)");
  app.add_option("--rules", options_.rules_path,
                 "a file with a line PATTERN: FP32, BF16, FP16 or KEEP for each rule; the first that matches counts")
      ->excludes(dtype);
  app.add_option("--out", options_.out, "the folder to make")->required();
  app.add_flag("--quiet", quiet_, "no progress");
}

absl::StatusOr<std::string> Export::FindFolder() const {
  int64_t step = 0;
  if (model_folder_.empty()) {
    if (checkpoint_ != "latest" && !absl::SimpleAtoi(checkpoint_, &step)) return checkpoint_;
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint_, ": give --dir too, the model's folder of checkpoints; or the path of a checkpoint"));
  }
  if (checkpoint_ == "latest") {
    ASSIGN_OR_RETURN(const checkpoint::StepEntry latest, checkpoint::LatestStep(model_folder_));
    return latest.path;
  }
  if (absl::SimpleAtoi(checkpoint_, &step)) {
    ASSIGN_OR_RETURN(const checkpoint::StepEntry found, checkpoint::FindStep(model_folder_, step));
    return found.path;
  }
  if (checkpoint::ParseStepFolderName(checkpoint_).has_value()) {
    return (std::filesystem::path(model_folder_) / checkpoint_).string();
  }
  return absl::InvalidArgumentError("want latest, a step or the name of a checkpoint's folder with --dir");
}

absl::StatusOr<int> Export::Run(const Context& context) {
  ASSIGN_OR_RETURN(options_.checkpoint, FindFolder());
  std::ostream* const out = quiet_ ? nullptr : context.streams().progress;
  bool shown = false;
  const auto show = [&](int64_t done_bytes, int64_t all_bytes, absl::string_view tensor) {
    if (out == nullptr) return;
    shown = true;
    *out << "\r\x1b[K" << BytesCell(done_bytes) << " of " << BytesCell(all_bytes) << ": "
         << safetensors::NameText(tensor) << std::flush;
  };
  const absl::StatusOr<HuggingFaceExportReport> report = ExportToHuggingFace(options_, show);
  if (shown) *out << "\r\x1b[K" << std::flush;
  RETURN_IF_ERROR(report.status());
  const bool as_table = context.options().output == Output::kTable;
  context.streams().out << (as_table ? ReportText(*report, options_.out) : JsonText(ReportJson(*report, options_.out)));
  return kSucceeded;
}

}  // namespace

const CommandInfo kExport = {
    .name = "export",
    .help = "write a checkpoint's masters as a folder that transformers opens, without a daemon",
    .asks_daemon = false,
    .create = Create<Export>};

}  // namespace paramshard::ctl
