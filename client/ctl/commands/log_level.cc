#include <map>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/ctl/commands.h"
#include "paramshard/v1/admin.pb.h"

namespace paramshard::ctl {
namespace {

const std::map<std::string, v1::LogLevel>& Levels() {
  static const auto* const levels = new std::map<std::string, v1::LogLevel>{{"debug", v1::LOG_LEVEL_DEBUG},
                                                                            {"info", v1::LOG_LEVEL_INFO},
                                                                            {"warning", v1::LOG_LEVEL_WARNING},
                                                                            {"error", v1::LOG_LEVEL_ERROR}};
  return *levels;
}

// Daemons of older versions do not send it.
std::string LevelText(v1::LogLevel level) {
  for (const auto& [name, value] : Levels()) {
    if (value == level) return name;
  }
  return "-";
}

std::string PresentText(const v1::GetVersionResponse& response) {
  return absl::StrCat(LevelText(response.log_level()), "\n");
}

std::string PreviousText(const v1::SetLogLevelResponse& response) {
  return absl::StrCat("was ", LevelText(response.previous()), "\n");
}

class LogLevel final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.add_option("level", level_, "debug, info, warning or error; none: show the present one")
        ->check(CLI::IsMember(Levels()));
  }
  std::vector<std::string> Objects() const override { return {level_}; }
  absl::StatusOr<int> Run(const Context& context) override {
    if (level_.empty()) return context.Show(&AdminClient::Stub::GetVersion, v1::GetVersionRequest(), PresentText);
    v1::SetLogLevelRequest request;
    request.set_level(Levels().at(level_));
    return context.Show(&AdminClient::Stub::SetLogLevel, request, PreviousText);
  }

 private:
  std::string level_;
};

}  // namespace

const CommandInfo kLogLevel = {
    .name = "log-level", .help = "set or show the log level of the daemon's server", .create = Create<LogLevel>};

}  // namespace paramshard::ctl
