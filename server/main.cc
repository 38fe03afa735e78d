// paramshardd: reads its configuration, serves until a signal comes, drains.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"
#include "server/config/config.h"
#include "server/daemon.h"
#include "server/descriptor_limit.h"
#include "server/exit_codes.h"
#include "server/last_resort.h"
#include "server/library_logs.h"
#include "server/log/log.h"
#include "server/version.h"

namespace paramshard::server {
namespace {

// How long the end may take beyond the drain, for calls under way and what devices still do. With the default drain
// that is less than the 30 s after which deploy/'s units kill the daemon.
constexpr absl::Duration kEndTimeout = absl::Seconds(15);
// More than gRPC starts before it serves its first call.
constexpr size_t kThreadsOfGrpc = 32;

// nohup means: do not end when the terminal does.
bool IsIgnored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (!IsIgnored(SIGHUP)) sigaddset(&signals, SIGHUP);
  return signals;
}

// Before there is another thread: all inherit this. Writing to who has gone, or beyond a limit on files (which counts
// shared memory too), is an error of the call; other signals are taken by one thread, with sigwait.
void PrepareSignals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

// The first signal drains, the second does not wait. A hang-up is no second one: a terminal that closes sends several.
void AwaitSignals(const std::stop_source& stop) {
  sigset_t signals = StopSignals();
  int signal = 0;
  sigwait(&signals, &signal);
  Log(LogLevel::kInfo, "draining", {{"signal", strsignal(signal)}});
  stop.request_stop();
  sigdelset(&signals, SIGHUP);
  sigwait(&signals, &signal);
  Log(LogLevel::kWarning, "stopping without drain", {{"signal", strsignal(signal)}});
  FlushLog(kFlushTimeout);
  std::_Exit(kExitInterrupted);
}

// The thread ends with the process: it may be waiting for a second signal.
absl::Status StartAwaitingSignals(const std::stop_source& stop) {
  ASSIGN_OR_RETURN(std::thread thread, StartThread("signals", [stop] { AwaitSignals(stop); }));
  thread.detach();
  return absl::OkStatus();
}

LogLevel LevelOf(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  return name == "error" ? LogLevel::kError : LogLevel::kInfo;
}

void LogStart(const DaemonConfig& config, const Daemon& daemon) {
  Log(LogLevel::kInfo, "serving",
      {{"version", kVersion},
       {"devices", absl::StrJoin(config.devices, ",")},
       {"socket_dir", config.socket_dir},
       {"listen", daemon.tcp_address()},
       {"node", absl::StrCat(config.node, "/", config.nodes)},
       {"descriptors", absl::StrCat(DescriptorLimit())}});
}

// gRPC ends the process where it finds no thread: better no start than that.
absl::Status CheckThreads() {
  absl::Notification counted;
  std::vector<std::thread> threads;
  absl::Status status;
  while (status.ok() && threads.size() < kThreadsOfGrpc) {
    absl::StatusOr<std::thread> thread = StartThread("gRPC", [&counted] { counted.WaitForNotification(); });
    status = thread.status();
    if (thread.ok()) threads.push_back(*std::move(thread));
  }
  counted.Notify();
  for (std::thread& thread : threads) thread.join();
  return status;
}

int StartFailed(const absl::Status& why, int exit_code) {
  Log(LogLevel::kError, "start failed", {{"error", why.ToString()}});
  return exit_code;
}

int Serve(const DaemonConfig& config) {
  std::stop_source stop;
  if (const absl::Status started = StartAwaitingSignals(stop); !started.ok()) {
    return StartFailed(started, kExitStartFailed);
  }
  if (const absl::Status enough = CheckThreads(); !enough.ok()) return StartFailed(enough, kExitStartFailed);
  if (const absl::Status checked = Daemon::Check(config); !checked.ok()) return StartFailed(checked, kExitUsage);
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config, OpenDevices, stop.get_token());
  if (!daemon.ok() && !stop.stop_requested()) return StartFailed(daemon.status(), kExitStartFailed);
  if (daemon.ok()) {
    LogStart(config, **daemon);
    (*daemon)->Wait();
    const LastResort last_resort(Daemon::StopTimeout(config) + kEndTimeout);
    (*daemon)->Stop();
    daemon->reset();
  }
  Log(LogLevel::kInfo, "stopped");
  return kExitOk;
}

// Prepares what belongs to the whole process, serves, and leaves the log written.
int Run(const ParsedArguments& arguments) {
  const DaemonConfig& config = arguments.config;
  ConfigureLog(config.log_format == "json" ? LogFormat::kJson : LogFormat::kText, LevelOf(config.log_level));
  LogWhatLibrariesSay();
  PrepareSignals();
  if (const absl::Status detached = DetachLog(); !detached.ok()) return StartFailed(detached, kExitStartFailed);
  for (const std::string& variable : arguments.unknown_variables) {
    Log(LogLevel::kWarning, "unknown environment variable", {{"name", variable}});
  }
  RaiseDescriptorLimit();
  const int exit_code = Serve(config);
  FlushLog(kFlushTimeout);
  return exit_code;
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
  return Run(*arguments);
}

}  // namespace
}  // namespace paramshard::server

int main(int argc, char** argv) { return paramshard::server::Main(argc, argv); }
