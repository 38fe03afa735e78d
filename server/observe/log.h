// Log of the daemon: events with fields, as text or JSON lines on standard error.
//
//   Log(LogLevel::kInfo, "epoch started", {{"model", name}, {"epoch", absl::StrCat(epoch)}});
#ifndef PARAMSHARD_SERVER_OBSERVE_LOG_H_
#define PARAMSHARD_SERVER_OBSERVE_LOG_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace paramshard::server {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };
enum class LogFormat : uint8_t { kText, kJson };

using LogFields = std::initializer_list<std::pair<absl::string_view, std::string>>;

// Convert between levels and their names in flags and lines.
absl::string_view LogLevelName(LogLevel level);
std::optional<LogLevel> FindLogLevel(absl::string_view name);

// Sets format and level; called before the first Log. Default: text, from level info on.
void ConfigureLog(LogFormat format, LogLevel least);

// Returns the least level that is written. Thread-safe.
LogLevel LeastLogLevel();
// Changes the level until the process ends, and returns the previous one. Logs a warning that names the caller, even if
// one of the two levels excludes warnings. Thread-safe.
LogLevel ChangeLogLevel(LogLevel least, const std::string& caller);

// Starts a thread that writes the lines; from then on Log never blocks. Lines that standard error does not take fast
// enough are dropped, and a line reports their number. Before, Log itself writes. RESOURCE_EXHAUSTED no thread.
absl::Status DetachLog();

// How long the end of a process waits for lines that are not read.
inline constexpr absl::Duration kFlushTimeout = absl::Seconds(1);
// Waits until the lines so far are written, at most for the timeout.
void FlushLog(absl::Duration timeout);

// Returns how many events of the level were logged since the process began, including dropped lines.
int64_t LoggedEvents(LogLevel level);

// Writes one line: as text `2026-11-21T08:00:00.000Z info epoch started model=m epoch=1`, as JSON an object of "time",
// "level", "event" and the fields; with a "count" if the line stands for several events. Thread-safe.
void Log(LogLevel level, absl::string_view event, LogFields fields = {}, int64_t count = 1);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_OBSERVE_LOG_H_
