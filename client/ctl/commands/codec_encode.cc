#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/codec_files.h"
#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "client/ctl/terminal_text.h"
#include "kernels/formats/format.h"

namespace paramshard::ctl {
namespace {

class CodecEncode final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    encoding_.AddFormat(app)->required();
    encoding_.AddPowerOfTwoScales(app);
    app.add_option("--scale", delayed_scale_, "multiplier of FP8_TENSOR_DELAYED (default: 1)")
        ->check(CLI::PositiveNumber)
        ->type_name("SCALE");
    app.add_option("input", input_, "a .npy file of float32, any shape; its rows are the last dimension")->required();
    app.add_option("output", output_, "a directory for the planes' .npy files, created if need be")->required();
  }
  absl::Status Check() const override {
    if (!delayed_scale_.has_value() || encoding_.format() == Format::kFP8TensorDelayed) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--scale: want format FP8_TENSOR_DELAYED, got ", FormatName(*encoding_.format())));
  }
  std::vector<std::string> Objects() const override { return {input_}; }
  absl::StatusOr<int> Run(const Context& context) override {
    RETURN_IF_ERROR(EncodeFile(encoding_.encoding(), input_, output_, delayed_scale_.value_or(1.0f)));
    context.streams().out << "wrote " << TerminalText(output_) << "\n";
    return kSucceeded;
  }

 private:
  EncodingOptions encoding_;
  std::optional<float> delayed_scale_;
  std::string input_;
  std::string output_;
};

}  // namespace

const CommandInfo kCodecEncode = {.name = "codec encode",
                                  .help = "encode a float32 matrix into its planes",
                                  .asks_daemon = false,
                                  .create = Create<CodecEncode>};

}  // namespace paramshard::ctl
