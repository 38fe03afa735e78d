#include "client/ctl/command_line.h"

#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/ctl/encoding.h"
#include "client/ctl/exit_codes.h"

namespace paramshard::ctl {
namespace {

constexpr int kMaxPageSize = 10000;
constexpr int kMaxLimit = 10000;

// The command line as it is being read. CLI11 speaks of errors with exceptions; they end in ParseCommandLine.
class Reader {
 public:
  explicit Reader(CommandLine& command_line);

  void Read(int argc, const char* const* argv);
  int Explain(const CLI::ParseError& error, std::ostream& out, std::ostream& err) {
    return app_.exit(error, out, err) == 0 ? kSucceeded : kUsage;
  }

 private:
  CLI::App* AddCommand(CLI::App& parent, const std::string& name, const std::string& help, Command command);
  static void RequireCommand(const CLI::App& parent);
  void AddGlobalOptions();
  void AddDaemonCommands();
  void AddCodecCommands();
  void AddConvert();
  void AddImport();
  CLI::Option* AddEncodingOptions(CLI::App& command);
  void AddPowerOfTwoScales(CLI::App& command);
  void AddModel(CLI::App& command);
  // Encodings depend on each other: read when all options are known.
  void FinishEncoding();
  void FinishConversion();

  CommandLine& command_line_;
  CLI::App app_{"Inspects the paramshard daemon of this machine, and encodes matrices offline.", "paramshardctl"};
  std::optional<Format> format_;
  std::optional<ElementType> element_;
  std::optional<bool> power_of_two_scales_;
  std::optional<float> delayed_scale_;
  bool dequantize_ = false;
  std::optional<Format> dtype_;
};

// The value that `parse` finds in an option's text.
template <typename Value>
Value Parsed(absl::StatusOr<Value> (*parse)(absl::string_view), const std::string& option, const std::string& text) {
  const absl::StatusOr<Value> value = parse(text);
  if (!value.ok()) throw CLI::ValidationError(option, std::string(value.status().message()));
  return *value;
}

absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view text) {
  absl::Duration timeout;
  if (absl::ParseDuration(text, &timeout) && timeout > absl::ZeroDuration()) return timeout;
  return absl::InvalidArgumentError(absl::StrCat("a positive duration such as 500ms, 10s or 2m expected, got ", text));
}

absl::StatusOr<Output> ParseOutput(absl::string_view text) {
  if (text == "table") return Output::kTable;
  if (text == "json") return Output::kJson;
  return absl::InvalidArgumentError(absl::StrCat("table or json expected, got ", text));
}

absl::StatusOr<Plane> ParsePlane(absl::string_view text) {
  if (text == "row") return Plane::kRowWise;
  if (text == "column") return Plane::kColumnWise;
  return absl::InvalidArgumentError(absl::StrCat("row or column expected, got ", text));
}

absl::StatusOr<bool> ParseBothPlanes(absl::string_view text) {
  if (text == "row") return false;
  if (text == "both") return true;
  return absl::InvalidArgumentError(absl::StrCat("row or both expected, got ", text));
}

absl::StatusOr<Format> ParsePlainDtype(absl::string_view text) {
  if (text == "F32") return Format::kFP32;
  if (text == "BF16") return Format::kBF16;
  if (text == "F16") return Format::kFP16;
  return absl::InvalidArgumentError(absl::StrCat("F32, BF16 or F16 expected, got ", text));
}

Reader::Reader(CommandLine& command_line) : command_line_(command_line) {
  // -o and the like may follow the command.
  app_.fallthrough();
  app_.set_version_flag("--version", absl::StrCat("paramshardctl ", PARAMSHARD_VERSION));
  app_.failure_message([](const CLI::App*, const CLI::Error& error) {
    return absl::StrCat("paramshardctl: ", error.what(), "\nRun paramshardctl --help for what is expected.\n");
  });
  app_.require_subcommand(0, 1);
  AddGlobalOptions();
  AddDaemonCommands();
  AddCodecCommands();
  AddConvert();
  AddImport();
}

void Reader::Read(int argc, const char* const* argv) {
  app_.parse(argc, argv);
  RequireCommand(app_);
  FinishEncoding();
}

// CLI11's own check would come before the one for words that are no command, and hide it.
void Reader::RequireCommand(const CLI::App& parent) {
  if (parent.get_subcommands({}).empty()) return;
  const std::vector<CLI::App*> given = parent.get_subcommands();
  if (given.empty()) throw CLI::RequiredError("A command of " + parent.get_name());
  RequireCommand(*given.front());
}

CLI::App* Reader::AddCommand(CLI::App& parent, const std::string& name, const std::string& help, Command command) {
  CLI::App* added = parent.add_subcommand(name, help);
  added->callback([this, command] { command_line_.command = command; });
  return added;
}

void Reader::AddGlobalOptions() {
  app_.add_option("--socket-dir", command_line_.socket_dir,
                  "where the daemon's sockets are (default: $PARAMSHARD_SOCKET_DIR, else $XDG_RUNTIME_DIR/paramshard, "
                  "else /tmp/paramshard-<uid>)");
  app_.add_option_function<std::string>(
          "-o,--output",
          [this](const std::string& text) { command_line_.output = Parsed(ParseOutput, "--output", text); },
          "table or json (default: table)")
      ->type_name("FORMAT");
  app_.add_option_function<std::string>(
          "--timeout",
          [this](const std::string& text) { command_line_.timeout = Parsed(ParseTimeout, "--timeout", text); },
          "how long to wait for an answer (default: 30s; stats, verify 10m)")
      ->type_name("DURATION");
}

void Reader::AddModel(CLI::App& command) { command.add_option("model", command_line_.model, "its name")->required(); }

void Reader::AddDaemonCommands() {
  AddCommand(app_, "models", "list the models", Command::kModels);
  CLI::App* shards = AddCommand(app_, "shards", "list a model's extents on this daemon", Command::kShards);
  AddModel(*shards);
  shards->add_option("--page-size", command_line_.page_size, "extents to ask for at a time (default: 1000)")
      ->check(CLI::Range(1, kMaxPageSize));
  CLI::App* describe = AddCommand(app_, "describe", "describe a parameter and its extents", Command::kDescribe);
  AddModel(*describe);
  describe->add_option("parameter", command_line_.parameter, "its name")->required();
  CLI::App* stats =
      AddCommand(app_, "stats", "rank a model's parameters by how far planes are from masters", Command::kStats);
  AddModel(*stats);
  stats->add_option("--limit", command_line_.limit, "parameters to show, the farthest first (default: 20)")
      ->check(CLI::Range(1, kMaxLimit));
  AddCommand(app_, "sessions", "list the attached trainers", Command::kSessions);
  AddCommand(app_, "memory", "count the bytes that the daemon holds", Command::kMemory);
  CLI::App* verify = AddCommand(
      app_, "verify", "encode planes again and compare, hash the state; exit code 4 for a mismatch", Command::kVerify);
  AddModel(*verify);
  verify->add_flag("--quiet", command_line_.quiet, "the summary only");
  AddCommand(app_, "drain", "stop the daemon as SIGTERM does", Command::kDrain);
  AddCommand(app_, "version", "show the daemon's version, build and devices", Command::kVersion);
}

CLI::Option* Reader::AddEncodingOptions(CLI::App& command) {
  command
      .add_option_function<std::string>(
          "--element", [this](const std::string& text) { element_ = Parsed(ParseElementType, "--element", text); },
          "E4M3, E5M2 or E2M1 (default: E4M3, NVFP4_2D E2M1)")
      ->type_name("ELEMENT");
  return command
      .add_option_function<std::string>(
          "--format", [this](const std::string& text) { format_ = Parsed(ParseFormat, "--format", text); },
          FormatNames())
      ->type_name("FORMAT");
}

void Reader::AddPowerOfTwoScales(CLI::App& command) {
  command
      .add_option("--power-of-two-scales", power_of_two_scales_,
                  "true or false: round scales down to powers of two (default: true for FP8_BLOCK_128X128, false for "
                  "FP8_TENSOR_CURRENT)")
      ->type_name("BOOL");
}

void Reader::AddCodecCommands() {
  CLI::App* codec = app_.add_subcommand("codec", "encode or decode one matrix, without a daemon");
  codec->require_subcommand(0, 1);
  CLI::App* encode = AddCommand(*codec, "encode", "encode a float32 matrix into its planes", Command::kCodecEncode);
  AddEncodingOptions(*encode)->required();
  AddPowerOfTwoScales(*encode);
  encode->add_option("--scale", delayed_scale_, "what FP8_TENSOR_DELAYED multiplies by (default: 1)")
      ->check(CLI::PositiveNumber)
      ->type_name("SCALE");
  encode->add_option("input", command_line_.input, "a .npy file of float32, any shape; its rows are the last dimension")
      ->required();
  encode->add_option("output", command_line_.output_path, "a directory for the planes' .npy files, created if need be")
      ->required();
  CLI::App* decode = AddCommand(*codec, "decode", "decode a plane that encode has written", Command::kCodecDecode);
  AddEncodingOptions(*decode)->required();
  decode
      ->add_option_function<std::string>(
          "--plane", [this](const std::string& text) { command_line_.plane = Parsed(ParsePlane, "--plane", text); },
          "row or column (default: row)")
      ->type_name("PLANE");
  decode
      ->add_option("--columns", command_line_.columns,
                   "columns of the matrix: of NVFP4_2D, whose rows are whole bytes, they may be odd (default: even)")
      ->check(CLI::PositiveNumber);
  decode->add_option("input", command_line_.input, "a directory that encode has written")->required();
  decode->add_option("output", command_line_.output_path, "the .npy file to write: float32 [rows, columns]")
      ->required();
}

void Reader::AddConvert() {
  CLI::App* convert =
      AddCommand(app_, "convert", "quantize a safetensors checkpoint, or decode a quantized one, without a daemon",
                 Command::kConvert);
  ConversionOptions& conversion = command_line_.conversion;
  CLI::Option* format = AddEncodingOptions(*convert);
  AddPowerOfTwoScales(*convert);
  CLI::Option* rules = convert->add_option("--rules", conversion.rules_path,
                                           "a file of lines PATTERN: FORMAT [ELEMENT], or PATTERN: KEEP; the first "
                                           "that matches a tensor's name counts");
  convert
      ->add_option_function<std::string>(
          "--planes",
          [&conversion](const std::string& text) {
            conversion.has_columns = Parsed(ParseBothPlanes, "--planes", text);
          },
          "row or both: the planes of MXFP8 (default: row)")
      ->type_name("PLANES");
  CLI::Option* dequantize = convert->add_flag("--dequantize", dequantize_, "decode what convert has quantized");
  convert
      ->add_option_function<std::string>(
          "--dtype", [this](const std::string& text) { dtype_ = Parsed(ParsePlainDtype, "--dtype", text); },
          "F32, BF16 or F16, to decode to (default: F32)")
      ->type_name("DTYPE")
      ->needs(dequantize);
  dequantize->excludes(format)->excludes(rules);
  convert->add_flag("--progress", command_line_.progress, "show progress also where standard error is no terminal");
  convert->add_flag("--quiet", command_line_.quiet, "the summary only");
  convert
      ->add_option_function<std::string>(
          "--report", [this](const std::string& text) { command_line_.output = Parsed(ParseOutput, "--report", text); },
          "table or json, of what was done (default: table)")
      ->type_name("FORMAT");
  convert->add_option("input", conversion.input, "a .safetensors file, an index.json, or a folder with either")
      ->required();
  // Takes the place of the global option behind the command.
  convert
      ->add_option("-o,--output", conversion.output,
                   "a .safetensors file, or a folder for files of the input's names, created if need be")
      ->required();
}

void Reader::AddImport() {
  CLI::App* command =
      AddCommand(app_, "import", "replace a model's masters with tensors of a safetensors file", Command::kImport);
  AddModel(*command);
  command->add_option("path", command_line_.input, "a .safetensors file, an index.json, or a folder with either")
      ->required();
  command->add_option("--map", command_line_.map_path,
                      "a file of lines PARAMETER: TENSOR, where names differ, and -: TENSOR for what is left out");
  command->add_flag("--partial", command_line_.partial, "leave parameters that the file lacks as they are");
}

void Reader::FinishEncoding() {
  command_line_.encoding = MakeEncoding(format_.value_or(Format::kFP32), element_, power_of_two_scales_);
  if (delayed_scale_.has_value() && command_line_.encoding.format != Format::kFP8TensorDelayed) {
    throw CLI::ValidationError(
        "--scale", absl::StrCat("FP8_TENSOR_DELAYED expected, got ", FormatName(command_line_.encoding.format)));
  }
  command_line_.delayed_scale = delayed_scale_.value_or(command_line_.delayed_scale);
  if (command_line_.command == Command::kConvert) FinishConversion();
}

void Reader::FinishConversion() {
  ConversionOptions& conversion = command_line_.conversion;
  if (format_.has_value()) conversion.encoding = command_line_.encoding;
  if (dequantize_) conversion.dequantized_format = dtype_.value_or(Format::kFP32);
  if (format_.has_value() || dequantize_ || !conversion.rules_path.empty()) return;
  throw CLI::RequiredError("--format, --rules or --dequantize");
}

}  // namespace

std::optional<int> ParseCommandLine(int argc, const char* const* argv, CommandLine& command_line, std::ostream& out,
                                    std::ostream& err) {
  Reader reader(command_line);
  try {
    reader.Read(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    return reader.Explain(error, out, err);
  }
}

std::string CommandName(Command command) {
  switch (command) {
    case Command::kModels:
      return "models";
    case Command::kShards:
      return "shards";
    case Command::kDescribe:
      return "describe";
    case Command::kStats:
      return "stats";
    case Command::kSessions:
      return "sessions";
    case Command::kMemory:
      return "memory";
    case Command::kVerify:
      return "verify";
    case Command::kDrain:
      return "drain";
    case Command::kVersion:
      return "version";
    case Command::kCodecEncode:
      return "codec encode";
    case Command::kCodecDecode:
      return "codec decode";
    case Command::kConvert:
      return "convert";
    case Command::kImport:
      return "import";
  }
  return "";
}

}  // namespace paramshard::ctl
