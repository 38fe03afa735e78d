// The daemon's log: events with fields, as text or JSON lines on standard error.
//
//   Log(LogLevel::kInfo, "epoch started", {{"model", name}, {"epoch", absl::StrCat(epoch)}});
#ifndef PARAMSHARD_SERVER_LOG_LOG_H_
#define PARAMSHARD_SERVER_LOG_LOG_H_

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

// As flags and lines say them.
absl::string_view LogLevelName(LogLevel level);
std::optional<LogLevel> FindLogLevel(absl::string_view name);

// Called before the first Log. Without it the log is text from level info on.
void ConfigureLog(LogFormat format, LogLevel least);

// Thread-safe. Lines below this level are not written.
LogLevel LeastLogLevel();
// Thread-safe. Changes the level until the process ends, returns the one before, and writes a warning that says for
// whom, whichever of the two levels would leave it out.
LogLevel ChangeLogLevel(LogLevel least, const std::string& caller);

// From now on a thread writes the lines and Log never blocks: when standard error is a pipe that nobody reads, lines
// are dropped, and counted in one that says so. Before, Log writes itself. RESOURCE_EXHAUSTED without a thread.
absl::Status DetachLog();

// How long the end of a process waits for lines that nobody reads.
inline constexpr absl::Duration kFlushTimeout = absl::Seconds(1);
// Waits until the lines so far are written, but not for longer than the timeout.
void FlushLog(absl::Duration timeout);

// How many events of the level were logged since the process began, those of lines that were dropped too.
int64_t LoggedEvents(LogLevel level);

// Thread-safe. Writes one line: as text `2026-11-21T08:00:00.000Z info epoch started model=m epoch=1`, as JSON an
// object of "time", "level", "event" and the fields; and of "count" where it stands for more than one event.
void Log(LogLevel level, absl::string_view event, LogFields fields = {}, int64_t count = 1);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_LOG_LOG_H_
