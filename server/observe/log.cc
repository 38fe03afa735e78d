#include "server/observe/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "server/observe/line_writer.h"

namespace paramshard::server {
namespace {

// Lives as long as the process: threads may log while it ends.
struct State {
  LogFormat format = LogFormat::kText;
  std::atomic<LogLevel> least = LogLevel::kInfo;
  absl::Mutex changing;  // keeps changes of `least` and their lines in the same order
  std::atomic<LineWriter*> writer = nullptr;
  std::array<std::atomic<int64_t>, 4> events = {};  // by level
};

State& TheLog() {
  static auto* const state = new State;
  return *state;
}

constexpr absl::string_view kLevelNames[] = {"debug", "info", "warning", "error"};

std::string Now() { return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()); }

// Returns false for values with spaces or control characters, which are quoted so that lines can be parsed and are
// harmless in a terminal.
bool IsPlain(absl::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '"' && c != '=';
  });
}

std::string TextLine(LogLevel level, absl::string_view event, LogFields fields, int64_t count) {
  std::string line = absl::StrCat(Now(), " ", LogLevelName(level), " ", event);
  for (const auto& [key, value] : fields) {
    absl::StrAppend(&line, " ", key, "=", IsPlain(value) ? value : absl::StrCat("\"", absl::CEscape(value), "\""));
  }
  if (count > 1) absl::StrAppend(&line, " count=", count);
  return line;
}

std::string JsonLine(LogLevel level, absl::string_view event, LogFields fields, int64_t count) {
  nlohmann::ordered_json line;
  line["time"] = Now();
  line["level"] = std::string(LogLevelName(level));
  line["event"] = std::string(event);
  for (const auto& [key, value] : fields) line[std::string(key)] = value;
  if (count > 1) line["count"] = absl::StrCat(count);
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string Line(LogLevel level, absl::string_view event, LogFields fields, int64_t count = 1) {
  return TheLog().format == LogFormat::kJson ? JsonLine(level, event, fields, count)
                                             : TextLine(level, event, fields, count);
}

}  // namespace

absl::string_view LogLevelName(LogLevel level) { return kLevelNames[static_cast<int>(level)]; }

std::optional<LogLevel> FindLogLevel(absl::string_view name) {
  const auto* const found = std::find(std::begin(kLevelNames), std::end(kLevelNames), name);
  if (found == std::end(kLevelNames)) return std::nullopt;
  return static_cast<LogLevel>(found - std::begin(kLevelNames));
}

void ConfigureLog(LogFormat format, LogLevel least) {
  TheLog().format = format;
  TheLog().least = least;
}

LogLevel LeastLogLevel() { return TheLog().least; }

LogLevel ChangeLogLevel(LogLevel least, const std::string& caller) {
  absl::MutexLock lock(&TheLog().changing);
  const LogLevel before = TheLog().least;
  if (least < before) TheLog().least = least;
  Log(LogLevel::kWarning, "log level changed",
      {{"from", std::string(LogLevelName(before))}, {"to", std::string(LogLevelName(least))}, {"caller", caller}});
  TheLog().least = least;
  return before;
}

absl::Status DetachLog() {
  LineWriter::Options options{.fd = STDERR_FILENO, .gap = [](int64_t count) {
                                return Line(LogLevel::kWarning, "log lines dropped", {{"count", absl::StrCat(count)}});
                              }};
  ASSIGN_OR_RETURN(auto writer, LineWriter::Start(std::move(options)));
  TheLog().writer = writer.release();
  return absl::OkStatus();
}

void FlushLog(absl::Duration timeout) {
  if (LineWriter* const writer = TheLog().writer; writer != nullptr) writer->Flush(timeout);
}

int64_t LoggedEvents(LogLevel level) {
  return TheLog().events[static_cast<int>(level)].load(std::memory_order_relaxed);
}

void Log(LogLevel level, absl::string_view event, LogFields fields, int64_t count) {
  if (level < TheLog().least) return;
  TheLog().events[static_cast<int>(level)].fetch_add(count, std::memory_order_relaxed);
  const std::string line = Line(level, event, fields, count);
  if (LineWriter* const writer = TheLog().writer; writer != nullptr) return writer->Write(line);
  std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace paramshard::server
