#include "server/library_logs.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/log/log.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kFlushTimeout = absl::Seconds(1);

void LogLine(LogLevel level, absl::string_view library, absl::string_view file, int line, absl::string_view text) {
  Log(level, "library says",
      {{"library", std::string(library)},
       {"place", absl::StrCat(file.substr(file.rfind('/') + 1), ":", line)},
       {"text", std::string(text)}});
}

// After such a line the library ends the process.
bool IsLast(absl::string_view text) { return absl::StartsWith(text, "assertion failed"); }

void LogGrpc(gpr_log_func_args* args) {
  const LogLevel level = args->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kError
                         : args->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                   : LogLevel::kDebug;
  LogLine(level, "grpc", args->file, args->line, args->message);
  if (IsLast(args->message)) FlushLog(kFlushTimeout);
}

void LogProtobuf(google::protobuf::LogLevel severity, const char* file, int line, const std::string& text) {
  const LogLevel level = severity == google::protobuf::LOGLEVEL_INFO      ? LogLevel::kInfo
                         : severity == google::protobuf::LOGLEVEL_WARNING ? LogLevel::kWarning
                                                                          : LogLevel::kError;
  LogLine(level, "protobuf", file, line, text);
  if (severity == google::protobuf::LOGLEVEL_FATAL) FlushLog(kFlushTimeout);
}

}  // namespace

void LogWhatLibrariesSay() {
  gpr_set_log_function(LogGrpc);
  google::protobuf::SetLogHandler(LogProtobuf);
}

}  // namespace paramshard::server
