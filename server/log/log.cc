#include "server/log/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace paramshard::server {
namespace {

LogFormat& Format() {
  static LogFormat format = LogFormat::kText;
  return format;
}

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("paramshardd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

absl::string_view NameOf(LogLevel level) {
  static constexpr absl::string_view kNames[] = {"debug", "info", "warning", "error"};
  return kNames[static_cast<int>(level)];
}

std::string Now() { return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()); }

// A value with spaces is quoted, so that a line can be taken apart.
std::string TextLine(LogLevel level, absl::string_view event, LogFields fields) {
  std::string line = absl::StrCat(Now(), " ", NameOf(level), " ", event);
  for (const auto& [key, value] : fields) {
    const bool plain = !value.empty() && value.find_first_of(" \"\n\t=") == std::string::npos;
    absl::StrAppend(&line, " ", key, "=", plain ? value : absl::StrCat("\"", absl::CEscape(value), "\""));
  }
  return line;
}

std::string JsonLine(LogLevel level, absl::string_view event, LogFields fields) {
  nlohmann::ordered_json line;
  line["time"] = Now();
  line["level"] = std::string(NameOf(level));
  line["event"] = std::string(event);
  for (const auto& [key, value] : fields) line[std::string(key)] = value;
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

void ConfigureLog(LogFormat format, LogLevel least) {
  Format() = format;
  Logger().set_level(ToSpdlog(least));
}

void Log(LogLevel level, absl::string_view event, LogFields fields) {
  if (!Logger().should_log(ToSpdlog(level))) return;
  Logger().log(ToSpdlog(level),
               Format() == LogFormat::kJson ? JsonLine(level, event, fields) : TextLine(level, event, fields));
}

}  // namespace paramshard::server
