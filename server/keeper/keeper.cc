#include "server/keeper/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/base/same_file.h"
#include "kernels/base/status_macros.h"
#include "server/base/clock.h"
#include "server/base/descriptor_limit.h"
#include "server/base/exit_codes.h"

namespace paramshard::server {
namespace {

// Reserved for the keeper's own descriptors, inherited ones, and those of one message.
constexpr int64_t kDescriptorsOfKeeper = 320;
// Distances of scores, which are -1000 to 1000; the kernel kills the process with the highest score first.
constexpr int kOomScoreBelow = 500;
constexpr int kOomScoreAbove = 200;
// Largest number of requests read from a dead server. A child that still holds its socket could send more.
constexpr int kMostLastRequests = 1024;
// Pause after a poll that failed.
constexpr absl::Duration kPauseAfterError = absl::Milliseconds(100);
// Most models named in a log line.
constexpr size_t kMostModelsNamed = 16;

// Returns true for SIGHUP under nohup.
bool IsIgnored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

sigset_t SignalsToTake() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals, signal);
  if (!IsIgnored(SIGHUP)) sigaddset(&signals, SIGHUP);
  return signals;
}

std::optional<int> ReadOomScore() {
  const wire::FileDescriptor file(open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC));
  char text[16];
  const ssize_t size = file.valid() ? read(file.get(), text, sizeof(text)) : -1;
  int score = 0;
  if (size <= 0 || !absl::SimpleAtoi(absl::string_view(text, size), &score)) return std::nullopt;
  return score;
}

bool WriteOomScore(int score) {
  const wire::FileDescriptor file(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  const std::string text = absl::StrCat(score);
  return file.valid() && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Returns the server's score, which is raised if the keeper may not lower its own.
std::optional<int> LowerOomScore() {
  const std::optional<int> score = ReadOomScore();
  if (!score.has_value() || WriteOomScore(std::max(-999, *score - kOomScoreBelow))) return score;
  return std::min(1000, *score + kOomScoreAbove);
}

DescriptorStore::Limits LimitsOf(const Keeper::Options& options) {
  if (options.limits.has_value()) return *options.limits;
  return {.descriptors = static_cast<size_t>(std::max<int64_t>(0, RaiseDescriptorLimit() - kDescriptorsOfKeeper))};
}

// Opens a file only to execute it; it can still be executed after it was deleted.
wire::FileDescriptor OpenProgram(const std::string& path) {
  return wire::FileDescriptor(open(path.c_str(), O_PATH | O_CLOEXEC));
}

// Returns true for the end of a stop: drained, with or without unsaved commits, interrupted, or timed out.
bool IsOrderly(const ServerEnd& end) {
  return end.signal == 0 && end.exec_error == 0 &&
         (end.exit_code == kExitOk || end.exit_code == kExitInterrupted || end.exit_code == kExitStuck ||
          end.exit_code == kExitUnsaved);
}

// Returns the keeper's exit code after a failure, which is never 0: a supervisor must not take it for success.
int FailureCode(const ServerEnd& end) { return end.Code() == kExitOk ? kExitStartFailed : end.Code(); }

}  // namespace

absl::StatusOr<std::unique_ptr<Keeper>> Keeper::Create(Options options) {
  RETURN_IF_ERROR(RaiseDescriptorLimitTo(kLeastDescriptorsOfKeeper));
  const sigset_t signals = SignalsToTake();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  // If SIGCHLD is ignored, the kernel reaps children itself and discards their exit status.
  std::signal(SIGCHLD, SIG_DFL);
  wire::FileDescriptor signal_fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signal_fd.valid()) return absl::ResourceExhaustedError(absl::StrCat("keeper: signalfd: ", strerror(errno)));
  return std::unique_ptr<Keeper>(new Keeper(std::move(options), signals, std::move(signal_fd), LowerOomScore()));
}

Keeper::Keeper(Options options, sigset_t signals, wire::FileDescriptor signal_fd, std::optional<int> server_oom_score)
    : log_(std::move(options.log)),
      signals_(signals),
      signal_fd_(std::move(signal_fd)),
      server_oom_score_(server_oom_score),
      lent_(std::move(options.lent)),
      kept_(LimitsOf(options)),
      policy_(options.restarts) {
  if (!options.file.valid()) options.file = OpenProgram(options.command.program);
  next_ = {.command = std::move(options.command),
           .file = std::make_shared<const wire::FileDescriptor>(std::move(options.file))};
}

int Keeper::Run() {
  exit_code_.reset();
  next_start_ = SteadyNow();
  StartWhenDue();
  while (!exit_code_.has_value()) {
    Await();
    TakeSignals();
    ServeConnection();
    NoticeEnd();
    StartWhenDue();
  }
  connection_.reset();
  server_.reset();
  return *exit_code_;
}

// --- The loop ---

// Errors do not end the loop. poll ignores descriptors of -1.
void Keeper::Await() {
  pollfd polled[] = {
      {.fd = signal_fd_.get(), .events = POLLIN, .revents = 0},
      {.fd = server_.has_value() ? server_->pidfd() : -1, .events = POLLIN, .revents = 0},
      {.fd = connection_.has_value() ? connection_->fd() : -1, .events = 0, .revents = 0},
  };
  if (connection_.has_value()) polled[2].events = connection_->events();
  if (poll(polled, std::size(polled), WaitMilliseconds()) >= 0 || errno == EINTR) return;
  Log(LogLevel::kError, "keeper poll failed", {{"error", strerror(errno)}});
  absl::SleepFor(kPauseAfterError);
}

// Returns the time until the next start; -1 (forever) if none is scheduled.
int Keeper::WaitMilliseconds() const {
  if (!next_start_.has_value()) return -1;
  const int64_t milliseconds = absl::ToInt64Milliseconds(absl::Ceil(TimeLeft(*next_start_), absl::Milliseconds(1)));
  return static_cast<int>(std::min<int64_t>(milliseconds, std::numeric_limits<int>::max()));
}

void Keeper::TakeSignals() {
  signalfd_siginfo info;
  while (!exit_code_.has_value() && read(signal_fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    OnSignal(static_cast<int>(info.ssi_signo));
  }
}

// Does not kill a server that has closed its end: its kept memory stays, and its exit is awaited.
void Keeper::ServeConnection() {
  if (!connection_.has_value()) return;
  connection_->Serve();
  if (connection_->fd() >= 0) return;
  connection_.reset();
}

void Keeper::NoticeEnd() {
  const std::optional<ServerEnd> end = server_.has_value() ? server_->Reap() : std::nullopt;
  if (!end.has_value()) return;
  if (connection_.has_value()) connection_->Serve(kMostLastRequests);
  connection_.reset();
  server_.reset();
  if (!exit_code_.has_value()) OnEnd(*end);
}

void Keeper::StartWhenDue() {
  while (!exit_code_.has_value() && next_start_.has_value() && SteadyNow() >= *next_start_) Start();
}

// --- Signals and requests ---

void Keeper::OnSignal(int signal) { signal == SIGUSR1 ? OnRestartSignal() : OnStopSignal(signal); }

// Ignores SIGHUP as a second signal: a terminal that closes sends it several times.
void Keeper::OnStopSignal(int signal) {
  const bool first = stop_signal_ == 0;
  if (!first && signal == SIGHUP) return;
  Log(first ? LogLevel::kInfo : LogLevel::kWarning, first ? "keeper stops the server" : "keeper kills the server",
      {{"signal", strsignal(signal)}, {"kept_memory_files", absl::StrCat(kept_.size())}});
  if (!first) return EndLosing("a second signal", kExitInterrupted);
  stop_signal_ = signal;
  if (server_.has_value()) return server_->Signal(signal);
  if (!kept_.has_models()) {
    exit_code_ = kExitOk;
  } else {
    StartToDrain();
  }
}

void Keeper::OnRestartSignal() {
  if (stop_signal_ != 0) return;
  Log(LogLevel::kInfo, "restart requested");
  rollback_.clear();
  if (server_.has_value()) return server_->Signal(SIGUSR1);
  if (!next_start_.has_value()) LookForNewFile();
  policy_.Reset();
  next_start_ = SteadyNow();
}

void Keeper::OnReady() {
  ready_ = true;
  proven_ = running_;
  policy_.OnReady(SteadyNow());
}

absl::Status Keeper::OnRestartRequest(std::optional<ServerCommand> command) {
  Program next = running_;
  if (command.has_value()) next.command.arguments = std::move(command->arguments);
  if (command.has_value() && !command->program.empty()) {
    wire::FileDescriptor file = OpenProgram(command->program);
    if (!file.valid() || access(command->program.c_str(), X_OK) != 0) {
      return absl::NotFoundError(absl::StrCat("restart: cannot execute ", command->program, ": ", strerror(errno)));
    }
    next.command.program = std::move(command->program);
    next.file = std::make_shared<const wire::FileDescriptor>(std::move(file));
  }
  next_ = std::move(next);
  rollback_.clear();
  return absl::OkStatus();
}

void Keeper::LookForNewFile() {
  wire::FileDescriptor file = OpenProgram(next_.command.program);
  if (!file.valid() || AreSameFile(file.get(), next_.file->get())) return;
  next_.file = std::make_shared<const wire::FileDescriptor>(std::move(file));
}

// --- Lives of servers ---

void Keeper::Start() {
  next_start_.reset();
  ready_ = false;
  running_ = next_;
  policy_.OnStart();
  absl::StatusOr<ServerProcess> started = ServerProcess::Start({.command = next_.command,
                                                                .file = next_.file->get(),
                                                                .blocked_signals = signals_,
                                                                .oom_score_adj = server_oom_score_,
                                                                .lent = lent_});
  if (!started.ok()) {
    Log(LogLevel::kError, "failed to start server", {{"error", started.status().ToString()}});
    return OnFailure(started.status().ToString(), kExitStartFailed);
  }
  ++started_;
  server_.emplace(*std::move(started));
  connection_.emplace(server_->TakeSocket(), &kept_,
                      ServerConnection::Requests{
                          .on_ready = [this](absl::string_view) { OnReady(); },
                          .on_restart = [this](auto command) { return OnRestartRequest(std::move(command)); },
                          .rollback = [this] { return rollback_; },
                          .restarts = [this] { return started_ - 1; },
                      });
  Log(LogLevel::kInfo, "server started",
      {{"pid", absl::StrCat(server_->pid())},
       {"program", next_.command.program},
       {"kept_memory_files", absl::StrCat(kept_.size())}});
  if (stop_signal_ != 0) server_->Signal(stop_signal_);
}

void Keeper::OnEnd(const ServerEnd& end) {
  const bool told = WasToldTo(end);
  const bool planned = end.signal == 0 && end.exit_code == kExitRestart;
  const std::string how = absl::StrCat(end.Description(), ready_ ? "" : " before it served");
  Log(told || planned ? LogLevel::kInfo : LogLevel::kError, "server ended",
      {{"end", how}, {"kept_memory_files", absl::StrCat(kept_.size())}});
  if (told) {
    exit_code_ = end.exit_code;
    return;
  }
  if (planned && ready_) policy_.Reset();
  OnFailure(how, FailureCode(end));
}

// A server that never was ready has drained nothing, and only a signal of the keeper could have told it to end: a
// program that prints its version exits with 0, too.
bool Keeper::WasToldTo(const ServerEnd& end) const {
  return IsOrderly(end) && (ready_ || (stop_signal_ != 0 && !kept_.has_models()));
}

void Keeper::OnFailure(const std::string& why, int code) {
  if (stop_signal_ != 0) return OnFailureWhileStopping(why, code);
  const bool first = !proven_.has_value() && !kept_.has_models() && code != kExitRestart;
  const SteadyTime now = SteadyNow();
  const std::optional<absl::Duration> pause = first ? std::nullopt : policy_.OnEnd(now);
  if (!pause.has_value()) return Hold(why, code);
  next_start_ = After(now, *pause);
}

// Makes no second attempt after a timeout: the next server would be no faster.
void Keeper::OnFailureWhileStopping(const std::string& why, int code) {
  const bool again = !drained_again_ && code != kExitStuck && code != kExitInterrupted;
  if (kept_.has_models())
    return again ? StartToDrain() : EndLosing(why, code == kExitRestart ? kExitStartFailed : code);
  exit_code_ = code == kExitRestart ? kExitOk : code;
}

void Keeper::StartToDrain() {
  Log(LogLevel::kWarning, "restarting server to drain");
  drained_again_ = true;
  if (proven_.has_value()) next_ = *proven_;
  next_start_ = SteadyNow();
}

void Keeper::Hold(const std::string& why, int code) {
  if (proven_.has_value() && *proven_ != next_) {
    Log(LogLevel::kError, "rolled back to the previous server", {{"program", proven_->command.program}});
    rollback_ = absl::StrCat(next_.command.program, " failed to start: ", why);
    next_ = *proven_;
    policy_.Reset();
    next_start_ = SteadyNow();
  } else if (!kept_.has_models()) {
    exit_code_ = code;
  } else {
    Log(LogLevel::kError, "server failed to start; memory is kept, SIGUSR1 retries",
        {{"kept_memory_files", absl::StrCat(kept_.size())}, {"end", why}});
  }
}

void Keeper::EndLosing(const std::string& why, int code) {
  if (kept_.has_models()) {
    Log(LogLevel::kError, "models are lost: no server has drained them",
        {{"models", absl::StrJoin(kept_.Models(kMostModelsNamed), ",")},
         {"kept_memory_files", absl::StrCat(kept_.size())},
         {"end", why}});
  }
  exit_code_ = code;
}

void Keeper::Log(LogLevel level, absl::string_view event, LogFields fields) const {
  if (log_) log_(level, event, fields);
}

}  // namespace paramshard::server
