#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/codec_files.h"
#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "client/ctl/terminal_text.h"

namespace paramshard::ctl {
namespace {

absl::StatusOr<Plane> ParsePlane(absl::string_view text) {
  if (text == "row") return Plane::kRowWise;
  if (text == "column") return Plane::kColumnWise;
  return absl::InvalidArgumentError(absl::StrCat("want row or column, got ", text));
}

class CodecDecode final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    encoding_.AddFormat(app)->required();
    AddParsedOption(app, "--plane", "PLANE", ParsePlane, plane_, "row or column (default: row)");
    app.add_option("--columns", columns_,
                   "columns of the matrix: of NVFP4_2D, whose rows are whole bytes, they may be odd (default: even)")
        ->check(CLI::PositiveNumber);
    app.add_option("input", input_, "a directory that encode has written")->required();
    app.add_option("output", output_, "the .npy file to write: float32 [rows, columns]")->required();
  }
  std::vector<std::string> Objects() const override { return {input_}; }
  absl::StatusOr<int> Run(const Context& context) override {
    RETURN_IF_ERROR(DecodeFiles(encoding_.encoding(), plane_, input_, output_, columns_));
    context.streams().out << "wrote " << TerminalText(output_) << "\n";
    return kSucceeded;
  }

 private:
  EncodingOptions encoding_;
  Plane plane_ = Plane::kRowWise;
  std::optional<int64_t> columns_;  // unset: the data says
  std::string input_;
  std::string output_;
};

}  // namespace

const CommandInfo kCodecDecode = {.name = "codec decode",
                                  .help = "decode a plane that encode has written",
                                  .asks_daemon = false,
                                  .create = Create<CodecDecode>};

}  // namespace paramshard::ctl
