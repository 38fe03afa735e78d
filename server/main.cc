// paramshardd: reads its configuration, serves until SIGTERM or SIGINT, drains.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/config/config.h"
#include "server/daemon.h"
#include "server/exit_codes.h"
#include "server/log/log.h"
#include "server/version.h"

namespace paramshard::server {
namespace {

// Signals are taken by one thread, with sigwait; every other thread has them blocked.
sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// The first signal drains, the second does not wait.
void AwaitSignals(Daemon* daemon) {
  const sigset_t signals = StopSignals();
  int signal = 0;
  sigwait(&signals, &signal);
  Log(LogLevel::kInfo, "draining", {{"signal", strsignal(signal)}});
  daemon->RequestStop();
  sigwait(&signals, &signal);
  Log(LogLevel::kWarning, "stopping without drain", {{"signal", strsignal(signal)}});
  std::_Exit(kExitInterrupted);
}

LogLevel LevelOf(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  return name == "error" ? LogLevel::kError : LogLevel::kInfo;
}

int Serve(const ParsedArguments& arguments) {
  const DaemonConfig& config = arguments.config;
  ConfigureLog(config.log_format == "json" ? LogFormat::kJson : LogFormat::kText, LevelOf(config.log_level));
  for (const std::string& variable : arguments.unknown_variables) {
    Log(LogLevel::kWarning, "unknown environment variable", {{"name", variable}});
  }
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  if (const absl::Status checked = Daemon::Check(config); !checked.ok()) {
    Log(LogLevel::kError, "start failed", {{"error", checked.ToString()}});
    return kExitUsage;
  }
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config);
  if (!daemon.ok()) {
    Log(LogLevel::kError, "start failed", {{"error", daemon.status().ToString()}});
    return kExitStartFailed;
  }
  Log(LogLevel::kInfo, "serving",
      {{"version", kVersion},
       {"devices", absl::StrJoin(config.devices, ",")},
       {"socket_dir", config.socket_dir},
       {"listen", (*daemon)->tcp_address()},
       {"node", absl::StrCat(config.node, "/", config.nodes)}});
  // Ends with the process: it may be waiting for a second signal.
  std::thread(AwaitSignals, daemon->get()).detach();
  (*daemon)->Wait();
  (*daemon)->Stop();
  Log(LogLevel::kInfo, "stopped");
  return kExitOk;
}

int Main(int argc, const char* const* argv) {
  const absl::StatusOr<ParsedArguments> arguments = ParseArguments(argc, argv, ProcessEnvironment());
  if (!arguments.ok()) {
    std::fprintf(stderr, "paramshardd: %s\n", std::string(arguments.status().message()).c_str());
    return kExitUsage;
  }
  switch (arguments->action) {
    case ParsedArguments::Action::kHelp:
      std::fputs(HelpText().c_str(), stdout);
      return kExitOk;
    case ParsedArguments::Action::kVersion:
      std::printf("paramshardd %s\n", kVersion);
      return kExitOk;
    case ParsedArguments::Action::kPrintConfig:
      std::fputs(ConfigText(*arguments).c_str(), stdout);
      return kExitOk;
    case ParsedArguments::Action::kServe:
      break;
  }
  return Serve(*arguments);
}

}  // namespace
}  // namespace paramshard::server

int main(int argc, char** argv) { return paramshard::server::Main(argc, argv); }
