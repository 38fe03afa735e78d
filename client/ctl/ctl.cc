#include "client/ctl/ctl.h"

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/ctl/admin_client.h"
#include "client/ctl/cell.h"
#include "client/ctl/codec_files.h"
#include "client/ctl/command_line.h"
#include "client/ctl/conversion.h"
#include "client/ctl/conversion_report.h"
#include "client/ctl/exit_codes.h"
#include "client/ctl/json.h"
#include "client/ctl/tables.h"
#include "client/ctl/terminal_text.h"
#include "client/ctl/text_lines.h"
#include "kernels/base/status_macros.h"

namespace paramshard::ctl {
namespace {

using Stub = AdminClient::Stub;

// Asks the daemon and writes the answer.
class DaemonCommand {
 public:
  DaemonCommand(const CommandLine& command_line, AdminClient client, const Streams& streams)
      : command_line_(command_line), client_(std::move(client)), streams_(streams) {}

  // The exit code: success, or a mismatch that verify found.
  absl::StatusOr<int> Run();

 private:
  template <typename Request, typename Response>
  absl::StatusOr<int> Show(grpc::Status (Stub::*rpc)(grpc::ClientContext*, const Request&, Response*),
                           const Request& request, std::string (*text)(const Response&));
  template <typename Response>
  absl::StatusOr<int> Write(const Response& response, std::string (*text)(const Response&));
  absl::StatusOr<int> ShowShards();
  absl::StatusOr<int> Describe();
  absl::StatusOr<int> ShowStats();
  absl::StatusOr<int> Verify();
  absl::StatusOr<int> Import();

  const CommandLine& command_line_;
  AdminClient client_;
  const Streams& streams_;
};

template <typename Response>
absl::StatusOr<int> DaemonCommand::Write(const Response& response, std::string (*text)(const Response&)) {
  if (command_line_.output == Output::kTable) {
    streams_.out << text(response);
    return kSucceeded;
  }
  ASSIGN_OR_RETURN(const std::string json, JsonText(response));
  streams_.out << json;
  return kSucceeded;
}

template <typename Request, typename Response>
absl::StatusOr<int> DaemonCommand::Show(grpc::Status (Stub::*rpc)(grpc::ClientContext*, const Request&, Response*),
                                        const Request& request, std::string (*text)(const Response&)) {
  Response response;
  RETURN_IF_ERROR(client_.Call(rpc, request, response));
  return Write(response, text);
}

absl::StatusOr<int> DaemonCommand::ShowShards() {
  ASSIGN_OR_RETURN(const v1::ListShardsResponse shards,
                   client_.ListAllShards(command_line_.model, command_line_.page_size));
  return Write(shards, ShardsText);
}

absl::StatusOr<int> DaemonCommand::Describe() {
  v1::DescribeParameterRequest request;
  request.set_model(command_line_.model);
  request.set_parameter(command_line_.parameter);
  return Show(&Stub::DescribeParameter, request, ParameterText);
}

absl::StatusOr<int> DaemonCommand::ShowStats() {
  ASSIGN_OR_RETURN(const v1::GetParameterStatsResponse stats, client_.Stats(command_line_.model, command_line_.limit));
  return Write(stats, StatsText);
}

// Counts the extents of a verify on a terminal, and wipes the line at the end.
class Progress {
 public:
  explicit Progress(std::ostream* out) : out_(out) {}
  ~Progress() {
    if (out_ != nullptr && count_ > 0) *out_ << "\r\x1b[K" << std::flush;
  }

  void Step() {
    ++count_;
    if (out_ != nullptr) *out_ << "\rverified " << count_ << " extents" << std::flush;
  }

 private:
  std::ostream* out_;
  int64_t count_ = 0;
};

absl::StatusOr<int> DaemonCommand::Verify() {
  std::vector<v1::ExtentVerification> extents;
  std::optional<Progress> progress(streams_.progress);
  const absl::StatusOr<v1::VerifySummary> summary =
      client_.Verify(command_line_.model, [&](const v1::ExtentVerification& extent) {
        progress->Step();
        if (!command_line_.quiet) extents.push_back(extent);
      });
  progress.reset();
  RETURN_IF_ERROR(summary.status());
  if (command_line_.output == Output::kTable) {
    streams_.out << (command_line_.quiet ? "" : ExtentsText(extents)) << SummaryText(*summary);
  } else {
    ASSIGN_OR_RETURN(const std::string json, VerificationJsonText(command_line_.quiet ? nullptr : &extents, *summary));
    streams_.out << json;
  }
  return summary->mismatch_count() == 0 ? kSucceeded : kMismatch;
}

// Lines "PARAMETER: TENSOR", and "-: TENSOR" for a tensor that is left out.
absl::Status ReadNameMap(const std::string& path, v1::ImportFileRequest& request) {
  ASSIGN_OR_RETURN(const std::vector<TextLine> lines, ReadTextLines(path));
  std::set<absl::string_view> parameters;
  for (const TextLine& line : lines) {
    if (line.key == "-") {
      request.add_ignored_tensors(line.value);
      continue;
    }
    if (!parameters.insert(line.key).second) {
      return absl::InvalidArgumentError(absl::StrCat(line.place, ": each parameter once expected, got it twice"));
    }
    v1::ParameterTensor& pair = *request.add_tensors();
    pair.set_parameter(line.key);
    pair.set_tensor(line.value);
  }
  return absl::OkStatus();
}

absl::StatusOr<int> DaemonCommand::Import() {
  v1::ImportFileRequest request;
  request.set_model(command_line_.model);
  // The daemon has another working directory.
  std::error_code error;
  request.set_path(std::filesystem::absolute(command_line_.input, error).string());
  request.set_partial(command_line_.partial);
  if (!command_line_.map_path.empty()) RETURN_IF_ERROR(ReadNameMap(command_line_.map_path, request));
  ASSIGN_OR_RETURN(const v1::ImportFileResponse response, client_.ImportFile(request));
  return Write(response, ImportText);
}

absl::StatusOr<int> DaemonCommand::Run() {
  switch (command_line_.command) {
    case Command::kModels:
      return Show(&Stub::ListModels, v1::ListModelsRequest(), ModelsText);
    case Command::kShards:
      return ShowShards();
    case Command::kDescribe:
      return Describe();
    case Command::kStats:
      return ShowStats();
    case Command::kSessions:
      return Show(&Stub::ListSessions, v1::ListSessionsRequest(), SessionsText);
    case Command::kMemory:
      return Show(&Stub::GetMemory, v1::GetMemoryRequest(), MemoryText);
    case Command::kVerify:
      return Verify();
    case Command::kDrain:
      return Show(&Stub::Drain, v1::DrainRequest(), DrainText);
    case Command::kImport:
      return Import();
    case Command::kVersion:
      return Show(&Stub::GetVersion, v1::GetVersionRequest(), VersionText);
    default:
      return absl::InternalError("a command of the daemon expected");
  }
}

// Without a daemon.
bool IsOffline(Command command) {
  return command == Command::kCodecEncode || command == Command::kCodecDecode || command == Command::kConvert;
}

absl::Status RunConvert(const CommandLine& command_line, const Streams& streams) {
  std::ostream* const out = command_line.progress ? &streams.err : streams.progress;
  const auto show = [&](int64_t done_bytes, int64_t all_bytes, absl::string_view tensor) {
    if (out == nullptr) return;
    *out << "\r\x1b[K" << BytesCell(done_bytes) << " of " << BytesCell(all_bytes) << ": "
         << safetensors::NameText(tensor) << std::flush;
  };
  const absl::StatusOr<ConversionReport> report = Convert(command_line.conversion, show);
  if (out != nullptr) *out << "\r\x1b[K" << std::flush;
  RETURN_IF_ERROR(report.status());
  streams.out << (command_line.output == Output::kTable ? ConversionText(*report, command_line.quiet)
                                                        : ConversionJsonText(*report, command_line.quiet));
  return absl::OkStatus();
}

absl::Status RunOffline(const CommandLine& command_line, const Streams& streams) {
  if (command_line.command == Command::kConvert) return RunConvert(command_line, streams);
  if (command_line.command == Command::kCodecEncode) {
    return EncodeFile(command_line.encoding, command_line.input, command_line.output_path, command_line.delayed_scale);
  }
  return DecodeFiles(command_line.encoding, command_line.plane, command_line.input, command_line.output_path,
                     command_line.columns);
}

absl::StatusOr<int> RunDaemonCommand(const CommandLine& command_line, const Streams& streams) {
  AdminClient::Options options;
  options.socket_dir = command_line.socket_dir;
  options.timeout = command_line.timeout.value_or(options.timeout);
  options.stream_timeout = command_line.timeout.value_or(options.stream_timeout);
  ASSIGN_OR_RETURN(AdminClient client, AdminClient::Connect(options));
  return DaemonCommand(command_line, std::move(client), streams).Run();
}

// "shards tiny", "codec encode in.npy": operation and object.
std::string Subject(const CommandLine& command_line) {
  std::vector<std::string> words = {CommandName(command_line.command)};
  for (const std::string& word :
       {command_line.model, command_line.parameter, command_line.input, command_line.conversion.input}) {
    if (!word.empty()) words.push_back(word);
  }
  return absl::StrJoin(words, " ");
}

int Fail(const CommandLine& command_line, const absl::Status& status, std::ostream& err) {
  err << "paramshardctl: " << TerminalText(absl::StrCat(Subject(command_line), ": ", status.ToString())) << std::endl;
  const bool unanswered = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return unanswered && !IsOffline(command_line.command) ? kUnreachable : kFailed;
}

}  // namespace

int RunCtl(int argc, const char* const* argv, const Streams& streams) {
  CommandLine command_line;
  const std::optional<int> ended = ParseCommandLine(argc, argv, command_line, streams.out, streams.err);
  if (ended.has_value()) return *ended;
  if (IsOffline(command_line.command)) {
    const absl::Status status = RunOffline(command_line, streams);
    return status.ok() ? kSucceeded : Fail(command_line, status, streams.err);
  }
  const absl::StatusOr<int> result = RunDaemonCommand(command_line, streams);
  return result.ok() ? *result : Fail(command_line, result.status(), streams.err);
}

}  // namespace paramshard::ctl
