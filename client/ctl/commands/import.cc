#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "client/ctl/terminal_text.h"
#include "client/ctl/text_lines.h"

namespace paramshard::ctl {
namespace {

std::string ImportText(const v1::ImportFileResponse& response) {
  std::string text;
  for (const std::string& name : response.missing_parameters())
    absl::StrAppend(&text, "not in the file: ", TerminalText(name), "\n");
  for (const std::string& warning : response.warnings())
    absl::StrAppend(&text, "warning: ", TerminalText(warning), "\n");
  return absl::StrCat(text, response.parameter_count(), " parameters imported, ", BytesCell(response.size_bytes()),
                      " read\n");
}

// Reads lines "PARAMETER: TENSOR", and "-: TENSOR" for a tensor that is left out.
absl::Status ReadNameMap(const std::string& path, v1::ImportFileRequest& request) {
  ASSIGN_OR_RETURN(const std::vector<TextLine> lines, ReadTextLines(path));
  std::set<absl::string_view> parameters;
  for (const TextLine& line : lines) {
    if (line.key == "-") {
      request.add_ignored_tensors(line.value);
      continue;
    }
    if (!parameters.insert(line.key).second) {
      return absl::InvalidArgumentError(absl::StrCat(line.place, ": duplicate parameter"));
    }
    v1::ParameterTensor& pair = *request.add_tensors();
    pair.set_parameter(line.key);
    pair.set_tensor(line.value);
  }
  return absl::OkStatus();
}

class Import final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddModelArgument(app, model_);
    app.add_option("path", path_, "a .safetensors file, an index.json, or a folder with either")->required();
    app.add_option("--map", map_path_,
                   "a file of lines PARAMETER: TENSOR, where names differ, and -: TENSOR for tensors to leave out");
    app.add_flag("--partial", partial_, "leave parameters that the file lacks as they are");
  }
  std::vector<std::string> Objects() const override { return {model_, path_}; }
  absl::StatusOr<int> Run(const Context& context) override;

 private:
  std::string model_;
  std::string path_;
  std::string map_path_;
  bool partial_ = false;
};

absl::StatusOr<int> Import::Run(const Context& context) {
  v1::ImportFileRequest request;
  request.set_model(model_);
  // The daemon has another working directory.
  std::error_code error;
  request.set_path(std::filesystem::absolute(path_, error).string());
  request.set_partial(partial_);
  if (!map_path_.empty()) RETURN_IF_ERROR(ReadNameMap(map_path_, request));
  return context.Show(&AdminClient::Stub::ImportFile, request, ImportText, RpcLength::kLong);
}

}  // namespace

const CommandInfo kImport = {
    .name = "import", .help = "replace a model's masters with tensors of a safetensors file", .create = Create<Import>};

}  // namespace paramshard::ctl
