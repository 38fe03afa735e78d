// The daemon's log: events with fields, as text or JSON lines on standard error.
//
//   Log(LogLevel::kInfo, "epoch started", {{"model", name}, {"epoch", absl::StrCat(epoch)}});
#ifndef PARAMSHARD_SERVER_LOG_LOG_H_
#define PARAMSHARD_SERVER_LOG_LOG_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace paramshard::server {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };
enum class LogFormat : uint8_t { kText, kJson };

using LogFields = std::initializer_list<std::pair<absl::string_view, std::string>>;

// Before the first Log; else text from level info on.
void ConfigureLog(LogFormat format, LogLevel least);

// Thread-safe. Text: `2026-11-21T08:00:00.000Z info epoch started model=m epoch=1`; JSON: {"time", "level", "event",
// fields}.
void Log(LogLevel level, absl::string_view event, LogFields fields = {});

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_LOG_LOG_H_
