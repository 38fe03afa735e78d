// paramshardd: reads its configuration, serves until a signal, and drains. With a keeper it is two processes of this
// program: the keeper, and the server that the keeper starts.

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/shared_memory/file_descriptor.h"
#include "kernels/base/status_macros.h"
#include "server/base/descriptor_limit.h"
#include "server/base/exit_codes.h"
#include "server/base/heartbeat.h"
#include "server/base/thread.h"
#include "server/base/version.h"
#include "server/device/memory.h"
#include "server/edge/peer_process.h"
#include "server/edge/socket_dir.h"
#include "server/keeper/keeper_link.h"
#include "server/observe/log.h"
#include "server/process/config.h"
#include "server/process/daemon.h"
#include "server/process/exit_watchdog.h"
#include "server/process/keeper_program.h"
#include "server/process/library_logs.h"
#include "server/process/service_notifier.h"
#include "server/world/decision_log.h"

namespace paramshard::server {
namespace {

// Timeout of the shutdown after drain and saves, for calls in progress and work of devices. With the defaults the sum
// is below the 11 minutes after which deploy/'s units kill the daemon.
constexpr absl::Duration kEndTimeout = absl::Seconds(15);
// More threads than gRPC and the daemon start before the first call and for a few trainers.
constexpr size_t kThreadsOfGrpc = 96;

// Returns true for SIGHUP under nohup.
bool IsIgnored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// How the process ends, set by signals and calls.
struct Ending {
  std::stop_source stop;
  std::atomic<bool> restart = false;  // the keeper starts the next server
};

// Returns the signals that stop the server. The keeper requests a restart with SIGUSR1.
sigset_t StopSignals(bool has_keeper) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (!IsIgnored(SIGHUP)) sigaddset(&signals, SIGHUP);
  if (has_keeper) sigaddset(&signals, SIGUSR1);
  return signals;
}

// Called before there are other threads, which inherit the signal mask. Writes to a closed peer, or beyond the limit of
// file sizes (which includes shared memory), return errors instead of signals; one thread takes the others with
// sigwait.
void PrepareSignals(const sigset_t& signals) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

// The first signal drains, the second ends the process at once. SIGHUP does not count as a second one (a terminal that
// closes sends it several times), nor does a second request of a restart.
void AwaitSignals(const sigset_t& signals, const std::shared_ptr<Ending>& ending) {
  bool stopping = false;
  while (true) {
    int signal = 0;
    sigwait(&signals, &signal);
    const bool restart = signal == SIGUSR1;
    if (stopping && !restart && signal != SIGHUP) {
      Log(LogLevel::kWarning, "stopping without drain", {{"signal", strsignal(signal)}});
      FlushLog(kFlushTimeout);
      std::_Exit(kExitInterrupted);
    }
    if (restart && !ending->stop.stop_requested()) ending->restart = true;
    stopping = stopping || !restart;
    // Logged before the request, behind which the process may end at any moment.
    if (!ending->stop.stop_requested()) Log(LogLevel::kInfo, "draining", {{"signal", strsignal(signal)}});
    ending->stop.request_stop();
  }
}

// The thread is detached, because it may wait for a second signal until the process ends.
absl::Status StartAwaitingSignals(const sigset_t& signals, const std::shared_ptr<Ending>& ending) {
  ASSIGN_OR_RETURN(std::thread thread, StartThread("signals", [signals, ending] { AwaitSignals(signals, ending); }));
  thread.detach();
  return absl::OkStatus();
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

// Fails the start if threads are short: later gRPC would end the process.
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

// Fails the start if the container forbids system calls that models require.
absl::Status CheckKernel() {
  for (const Sharing sharing : {Sharing::kReadOnly, Sharing::kReadWrite, Sharing::kKept}) {
    RETURN_IF_ERROR(Memory::Allocate("memory to try at the start", sysconf(_SC_PAGESIZE), sharing).status());
  }
  ASSIGN_OR_RETURN(const wire::FileDescriptor self, OwnPidfd());
  return CheckMaySignal(self.get());
}

int StartFailed(const absl::Status& why, int exit_code) {
  Log(LogLevel::kError, "start failed", {{"error", why.ToString()}});
  return exit_code;
}

// Sets the name of the process: the kernel would name it after the number of the keeper's descriptor of the program.
void NameProcess(const std::string& program) { prctl(PR_SET_NAME, std::filesystem::path(program).filename().c_str()); }

// The server's side of a keeper.
struct Kept {
  std::unique_ptr<KeeperLink> link;      // null without a keeper
  wire::FileDescriptor socket_dir_lock;  // none from a keeper without the lock
  wire::FileDescriptor state_dir_lock;   // likewise
  ServerCommand command;                 // of this server
  std::string socket_dir;                // of this server
};

// Returns true if both paths lead to the same directory.
bool AreSameDirectory(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || std::filesystem::equivalent(a, b, error);
}

// Checks the flags of the next server. Accepts flags that fail to parse: the next version may know them. Rejects
// another socket directory: the keeper locks only its own, so that another daemon could take the other one between two
// servers.
absl::Status CheckServes(const ServerCommand& command, const std::string& socket_dir) {
  std::vector<const char*> argv{command.program.c_str()};
  for (const std::string& argument : command.arguments) argv.push_back(argument.c_str());
  const absl::StatusOr<ParsedArguments> arguments =
      ParseArguments(static_cast<int>(argv.size()), argv.data(), ProcessEnvironment());
  if (!arguments.ok()) return absl::OkStatus();
  if (arguments->action != ParsedArguments::Action::kServe) {
    return absl::InvalidArgumentError("restart: --help, --version and --print-config are not allowed");
  }
  if (AreSameDirectory(arguments->config.socket_dir, socket_dir)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("restart: want --socket-dir=", socket_dir,
                                                 ", which the keeper holds, got ", arguments->config.socket_dir));
}

// Tolerates a keeper that does not answer: it restarts servers nevertheless.
std::string RollbackOf(KeeperLink& link) {
  absl::StatusOr<std::string> rollback = link.LastRestart();
  if (rollback.ok()) return *std::move(rollback);
  Log(LogLevel::kWarning, "keeper does not answer", {{"error", rollback.status().ToString()}});
  return "";
}

// Returns null for an older keeper, which does not know.
std::optional<int64_t> RestartsOf(KeeperLink& link) {
  const absl::StatusOr<int64_t> count = link.CountRestarts();
  return count.ok() ? std::optional(*count) : std::nullopt;
}

KeeperServices KeeperServicesOf(const Kept& kept, const std::shared_ptr<Ending>& ending) {
  if (kept.link == nullptr) return {.restarts = 0};
  const auto restart = [&kept, ending](const ServerCommandChange& change) -> absl::Status {
    const ServerCommand next = change.AppliedTo(kept.command);
    RETURN_IF_ERROR(CheckServes(next, kept.socket_dir));
    const std::optional<ServerCommand> request = change.RequestFrom(kept.command);
    absl::Status asked = kept.link->RequestRestart(request);
    // An older keeper requires the name of the program.
    if (absl::IsNotFound(asked) && request->program.empty()) asked = kept.link->RequestRestart(next);
    RETURN_IF_ERROR(asked);
    if (!ending->stop.stop_requested()) ending->restart = true;
    return absl::OkStatus();
  };
  const auto is_followed = [ending] { return ending->restart.load(); };
  return {.restart = restart,
          .is_followed = is_followed,
          .kept = kept.link.get(),
          .rollback = RollbackOf(*kept.link),
          .restarts = RestartsOf(*kept.link),
          .socket_dir_lock = kept.socket_dir_lock.get(),
          .state_dir_lock = kept.state_dir_lock.get()};
}

// Only warns on failure: the keeper would then only count the server's end as a failed start.
void ReportReady(const Kept& kept) {
  if (kept.link == nullptr) return;
  const absl::Status reported = kept.link->ReportReady(kVersion);
  if (!reported.ok()) Log(LogLevel::kWarning, "keeper does not answer", {{"error", reported.ToString()}});
}

void ReportEnd(ServiceNotifier& notifier, const Ending& ending) {
  ending.restart ? notifier.Restarting("draining; the next server follows") : notifier.Stopping("draining");
}

int Serve(const DaemonConfig& config, const Kept& kept, const std::shared_ptr<Ending>& ending) {
  ServiceNotifier notifier(std::getenv(ServiceNotifier::kVariable));
  notifier.Status("starting");
  if (const absl::Status enough = CheckThreads(); !enough.ok()) return StartFailed(enough, kExitStartFailed);
  if (const absl::Status allowed = CheckKernel(); !allowed.ok()) return StartFailed(allowed, kExitStartFailed);
  const auto heartbeat = Heartbeat::Start([](absl::Duration stalled) {
    Log(LogLevel::kWarning, "server was paused; deadlines extended", {{"by", absl::FormatDuration(stalled)}});
  });
  if (!heartbeat.ok()) return StartFailed(heartbeat.status(), kExitStartFailed);
  if (const absl::Status checked = Daemon::Check(config); !checked.ok()) return StartFailed(checked, kExitUsage);
  // A stop before the daemon serves also limits its start, which saves the models that it takes over.
  absl::once_flag bounded;
  std::optional<ExitWatchdog> exit_watchdog;
  const auto bound = [&] {
    absl::call_once(bounded, [&] {
      exit_watchdog.emplace(Daemon::StopTimeout(config) + kEndTimeout, ending->restart ? kExitRestart : kExitStuck);
    });
  };
  const std::stop_callback on_stop(ending->stop.get_token(), bound);
  absl::StatusOr<std::unique_ptr<Daemon>> daemon =
      Daemon::Start(config, OpenDevices, ending->stop.get_token(), KeeperServicesOf(kept, ending));
  if (!daemon.ok() && !ending->stop.stop_requested()) return StartFailed(daemon.status(), kExitStartFailed);
  bool left_unsaved = false;
  if (daemon.ok()) {
    LogStart(config, **daemon);
    ReportReady(kept);
    notifier.Ready([&daemon] { return (*daemon)->Summary(); });
    (*daemon)->Wait();
    bound();
    ReportEnd(notifier, *ending);
    (*daemon)->Stop();
    left_unsaved = (*daemon)->left_unsaved();
    daemon->reset();
  }
  Log(LogLevel::kInfo, "stopped");
  if (ending->restart) return kExitRestart;
  return left_unsaved ? kExitUnsaved : kExitOk;
}

// Prepares the process, serves, and flushes the log.
int RunServer(const ParsedArguments& arguments, const Kept& kept) {
  LogWhatLibrariesSay();
  const sigset_t signals = StopSignals(kept.link != nullptr);
  PrepareSignals(signals);
  if (const absl::Status detached = DetachLog(); !detached.ok()) return StartFailed(detached, kExitStartFailed);
  for (const std::string& variable : arguments.unknown_variables) {
    Log(LogLevel::kWarning, "unknown environment variable", {{"name", variable}});
  }
  if (const absl::Status enough = RaiseDescriptorLimitTo(kLeastDescriptorsOfServer); !enough.ok()) {
    return StartFailed(enough, kExitStartFailed);
  }
  const auto ending = std::make_shared<Ending>();
  const absl::Status awaiting = StartAwaitingSignals(signals, ending);
  const int exit_code = awaiting.ok() ? Serve(arguments.config, kept, ending) : StartFailed(awaiting, kExitStartFailed);
  FlushLog(kFlushTimeout);
  return exit_code;
}

// Descriptors inherited from a keeper. `link` is an error if there is no keeper.
struct InheritedDescriptors {
  absl::StatusOr<std::unique_ptr<KeeperLink>> link;
  wire::FileDescriptor socket_dir_lock, state_dir_lock;
};

int Run(const ParsedArguments& arguments, ServerCommand command, InheritedDescriptors inherited) {
  const DaemonConfig& config = arguments.config;
  auto& link = inherited.link;
  ConfigureLog(config.log_format == "json" ? LogFormat::kJson : LogFormat::kText,
               FindLogLevel(config.log_level).value_or(LogLevel::kInfo));
  if (link.ok()) {
    NameProcess(command.program);
    return RunServer(arguments, {.link = *std::move(link),
                                 .socket_dir_lock = std::move(inherited.socket_dir_lock),
                                 .state_dir_lock = std::move(inherited.state_dir_lock),
                                 .command = std::move(command),
                                 .socket_dir = config.socket_dir});
  }
  if (!absl::IsNotFound(link.status())) return StartFailed(link.status(), kExitUsage);
  return config.keeper ? RunKeeper(config, command.arguments) : RunServer(arguments, {});
}

int Main(int argc, const char* const* argv) {
  // Before ParseArguments: these remove variables that are no settings.
  InheritedDescriptors inherited{.link = KeeperLink::FromEnvironment(),
                                 .socket_dir_lock = SocketDir::TakeLentLock(),
                                 .state_dir_lock = TakeLentDescriptor(DecisionLog::kLockVariable)};
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
  ServerCommand command{.program = argv[0], .arguments = {argv + std::min(argc, 1), argv + argc}};
  return Run(*arguments, std::move(command), std::move(inherited));
}

}  // namespace
}  // namespace paramshard::server

int main(int argc, char** argv) { return paramshard::server::Main(argc, argv); }
