#include "server/process/library_logs.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/observe/log.h"
#include "server/observe/log_throttle.h"

namespace paramshard::server {
namespace {

// Largest text of a line: libraries quote input of callers.
constexpr size_t kMaxTextBytes = 1024;

// One throttle for each line of library code that logs.
class Throttles {
 public:
  LogThrottle& Of(const std::string& place) {
    absl::MutexLock lock(&mu_);
    return throttles_[place];
  }

 private:
  absl::Mutex mu_;
  std::map<std::string, LogThrottle> throttles_ ABSL_GUARDED_BY(mu_);
};

// Logs at most one line a minute for each place, because callers can trigger a line with each call; always logs the
// last line before the library ends the process.
void LogLine(LogLevel level, absl::string_view library, absl::string_view file, int line, absl::string_view text,
             bool is_last) {
  static auto* const throttles = new Throttles;
  const std::string place = absl::StrCat(file.substr(file.rfind('/') + 1), ":", line);
  const std::optional<int64_t> count = throttles->Of(place).Pass();
  if (!count.has_value() && !is_last) return;
  Log(level, "library says",
      {{"library", std::string(library)},
       {"place", place},
       {"text", std::string(text.substr(0, kMaxTextBytes))},
       {"count", absl::StrCat(count.value_or(1))}});
  if (is_last) FlushLog(kFlushTimeout);
}

// Returns true for a line after which the library ends the process.
bool IsLast(absl::string_view text) { return absl::StartsWith(text, "assertion failed"); }

// Returns true for gRPC's complaint about a server whose certificate does not name its host: certificates here name
// URIs.
bool IsExpected(absl::string_view text) { return absl::StartsWith(text, "No match found for server name"); }

void LogGrpc(gpr_log_func_args* args) {
  if (IsExpected(args->message)) return;
  const LogLevel level = args->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kError
                         : args->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                   : LogLevel::kDebug;
  LogLine(level, "grpc", args->file, args->line, args->message, IsLast(args->message));
}

void LogProtobuf(google::protobuf::LogLevel severity, const char* file, int line, const std::string& text) {
  const LogLevel level = severity == google::protobuf::LOGLEVEL_INFO      ? LogLevel::kInfo
                         : severity == google::protobuf::LOGLEVEL_WARNING ? LogLevel::kWarning
                                                                          : LogLevel::kError;
  LogLine(level, "protobuf", file, line, text, severity == google::protobuf::LOGLEVEL_FATAL);
}

}  // namespace

void LogWhatLibrariesSay() {
  gpr_set_log_function(LogGrpc);
  gpr_log_verbosity_init();  // before its first use gRPC says nothing at all
  google::protobuf::SetLogHandler(LogProtobuf);
}

}  // namespace paramshard::server
