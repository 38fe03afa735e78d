#include "tests/campaign/kept_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <deque>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "proto/wire/handoff.h"
#include "server/journal/recovery.h"
#include "tests/campaign/world.h"

namespace paramshard::test {
namespace {

// An error of a start says why in its last lines.
std::string EndOf(const std::string& log) {
  constexpr size_t kLines = 6;
  std::deque<std::string> lines;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > kLines) lines.pop_front();
  }
  return absl::StrJoin(lines, "\n");
}

absl::StatusOr<nlohmann::json> Json(const std::string& command) {
  ASSIGN_OR_RETURN(const std::string output, OutputOf(command));
  return nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
}

// The keeper's child, serving or not; another one than `before`.
absl::StatusOr<pid_t> AwaitChild(pid_t keeper, pid_t before) {
  pid_t child = -1;
  const auto is_there = [&]() -> absl::StatusOr<bool> {
    std::ifstream children(absl::StrCat("/proc/", keeper, "/task/", keeper, "/children"));
    return (children >> child) && child != before;
  };
  ASSIGN_OR_RETURN(const bool there, Poll({.timeout = kPatience}, is_there));
  if (there) return child;
  return absl::DeadlineExceededError("a server expected after one that was killed");
}

// Behind the text, to the end of the word.
absl::StatusOr<int64_t> NumberIn(const std::string& line, const std::string& text) {
  const size_t at = line.find(text);
  int64_t number = 0;
  if (at != std::string::npos) {
    const size_t begin = at + text.size();
    if (absl::SimpleAtoi(line.substr(begin, line.find(' ', begin) - begin), &number)) return number;
  }
  return absl::InternalError(absl::StrCat("a number behind", text, " expected, got ", line));
}

// Ends this trainer.
[[noreturn]] void Fail(Board& board, const std::string& why) {
  board.code = static_cast<int32_t>(absl::StatusCode::kInternal);
  absl::SNPrintF(board.text, sizeof(board.text), "%s", why);
  std::_Exit(1);
}

void AwaitLeave(Board& board, int64_t commit) {
  Reach(board, kAtCommit, static_cast<uint32_t>(commit));
  const absl::StatusOr<bool> may_go =
      Poll({.timeout = kPatience}, [&]() -> absl::StatusOr<bool> { return board.numbers[kMayCommit] >= commit; });
  if (!may_go.value_or(false)) Fail(board, absl::StrCat("commit ", commit, ": leave to begin it expected, got none"));
}

}  // namespace

absl::StatusOr<KeptServer> KeptServer::Start(const CampaignOptions& options, Shape shape) {
  const std::string address = absl::StrCat("--cluster-address=127.0.0.1:", FreePort());
  const size_t count = shape == Shape::kOneDaemon ? 1 : options.devices.size();
  return Start(options, shape,
               std::vector<Site>(count, {.flags = count == 1 ? std::vector<std::string>() : std::vector{address}}),
               kCommits);
}

absl::StatusOr<KeptServer> KeptServer::Start(const CampaignOptions& options, Shape shape, std::vector<Site> sites,
                                             int64_t commits) {
  KeptServer world(options, shape, commits);
  for (size_t node = 0; node < sites.size(); ++node) {
    const std::string devices = sites.size() == 1 ? absl::StrJoin(options.devices, ",") : options.devices[node];
    sites[node].flags.push_back(absl::StrCat("--device=", devices));
    if (sites.size() > 1) {
      sites[node].flags.push_back(absl::StrCat("--nodes=", sites.size()));
      sites[node].flags.push_back(absl::StrCat("--node=", node));
    }
    RETURN_IF_ERROR(world.Add(std::move(sites[node])));
  }
  for (Daemon& daemon : world.daemons_) RETURN_IF_ERROR(world.AwaitServing(daemon));
  return world;
}

absl::Status KeptServer::Add(Site site) {
  site.flags.insert(site.flags.end(), {"--keeper=on", "--log-level=info"});
  TemporaryDirectory directory;
  if (site.log.empty()) site.log = directory.path() + "/log";
  daemons_.push_back({.directory = std::move(directory), .site = std::move(site)});
  return Spawn(daemons_.back());
}

absl::Status KeptServer::Spawn(Daemon& daemon) const {
  const wire::FileDescriptor log(open(daemon.site.log.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return absl::ErrnoToStatus(errno, "open a log");
  Surroundings surroundings = daemon.site.surroundings;
  surroundings.standard_error = log.get();
  daemon.keeper.emplace(
      DaemonProcess::Spawn(options_.daemon, daemon.directory.path(), daemon.site.flags, surroundings));
  return absl::OkStatus();
}

absl::Status KeptServer::AwaitServing(Daemon& daemon) const {
  absl::Status status = daemon.keeper->AwaitReady(kPatience);
  absl::StatusOr<pid_t> server = status.ok() ? ServerPid(daemon) : status;
  if (server.ok()) daemon.server = *server;
  if (server.ok()) return absl::OkStatus();
  const auto node = &daemon - daemons_.data();
  return absl::Status(server.status().code(), absl::StrCat("start node ", node, ": ", server.status().message(),
                                                           "; its log ends with\n", EndOf(daemon.site.log)));
}

// Its server ends with the keeper, and so does what that keeps; but only then is the folder of sockets free.
absl::Status KeptServer::Leave(int left) {
  Daemon& daemon = daemons_[left];
  ASSIGN_OR_RETURN(const pid_t server, AwaitChild(daemon.keeper->pid(), /*before=*/-1));
  const wire::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, server, 0)));
  if (!pidfd.valid()) return absl::ErrnoToStatus(errno, "pidfd_open");
  daemon.keeper->Signal(SIGKILL);
  RETURN_IF_ERROR(daemon.keeper->AwaitExit(kPatience).status());
  pollfd gone{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  if (poll(&gone, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) == 1) return absl::OkStatus();
  return absl::DeadlineExceededError("the end of a server expected after that of its keeper");
}

absl::Status KeptServer::Return(int left) {
  RETURN_IF_ERROR(Spawn(daemons_[left]));
  return AwaitServing(daemons_[left]);
}

absl::Status KeptServer::Lose(int lost, absl::Span<const absl::Duration> followers) {
  for (size_t follower = 0; follower <= followers.size(); ++follower) {
    RETURN_IF_ERROR(Leave(lost));
    RETURN_IF_ERROR(Spawn(daemons_[lost]));
    // Nothing is waited for: any time of its start, and of the healing behind it, is to be hit.
    if (follower < followers.size()) absl::SleepFor(followers[follower]);
  }
  return AwaitServing(daemons_[lost]);
}

Training KeptServer::TrainingOf(const std::string& model, int rank) const {
  Training training{.socket_dir = daemons_[shape_ == Shape::kOneDaemon ? 0 : rank].directory.path(),
                    .model = model,
                    .rows_factor = options_.rows_factor,
                    .scaled = shape_ != Shape::kOneDaemon,
                    .rank = rank,
                    .elastic = shape_ == Shape::kElastic};
  if (shape_ == Shape::kShards) training.shard_size = daemons();
  training.commits = commits_;
  return training;
}

ChildProcess KeptServer::StartTrainer(const std::string& model, int rank) const {
  return ChildProcess::Run([training = TrainingOf(model, rank)](Board& board) mutable {
    int64_t answered = 0;
    // Pauses between servers that are killed again and again grow: all kills of a round may take minutes.
    absl::Time latest = absl::Now() + 5 * kPatience;
    training.at = [&](Point point, int64_t commit) {
      if (point == Point::kStart && commit <= answered) {
        Fail(board, absl::StrCat("commit ", answered + 1, " expected to be the next one, got ", commit));
      }
      if (point == Point::kStart) AwaitLeave(board, commit);
      if (point != Point::kCommitted) return;
      answered = commit;
      latest = absl::Now() + 5 * kPatience;
    };
    absl::Status status = absl::UnavailableError("not yet");
    // A server that stands still for longer than a connection waits for its welcome is DEADLINE_EXCEEDED.
    const auto may_come_right = [&] { return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status); };
    while (may_come_right() && absl::Now() < latest) status = Train(training);
    return status;
  });
}

absl::StatusOr<pid_t> KeptServer::ServerPid(const Daemon& daemon) const {
  ASSIGN_OR_RETURN(
      const nlohmann::json version,
      Json(absl::StrCat(options_.ctl, " --socket-dir=", daemon.directory.path(), " -o json version 2>&1")));
  if (!version.is_object() || !version.contains("pid")) return absl::UnavailableError("no server answers");
  return static_cast<pid_t>(std::stol(version["pid"].get<std::string>()));
}

absl::Status KeptServer::Kill(absl::Span<const int> daemons, absl::Span<const absl::Duration> followers,
                              absl::Span<const int> signals) {
  std::vector<pid_t> killed;
  for (const int daemon : daemons) {
    ++daemons_[daemon].kills;
    killed.push_back(daemons_[daemon].server);
    kill(killed.back(), signals.front());
  }
  for (size_t follower = 0; follower < followers.size(); ++follower) {
    for (size_t i = 0; i < daemons.size(); ++i) {
      ASSIGN_OR_RETURN(killed[i], AwaitChild(daemons_[daemons[i]].keeper->pid(), killed[i]));
    }
    absl::SleepFor(followers[follower]);
    for (const pid_t server : killed) kill(server, signals[1 + follower]);
  }
  for (size_t i = 0; i < daemons.size(); ++i) RETURN_IF_ERROR(AwaitNext(daemons_[daemons[i]], killed[i]));
  return absl::OkStatus();
}

absl::Status KeptServer::AwaitNext(absl::Span<const int> daemons) {
  for (const int daemon : daemons) RETURN_IF_ERROR(AwaitNext(daemons_[daemon], daemons_[daemon].server));
  return absl::OkStatus();
}

absl::Status KeptServer::Restart(int restarted) {
  Daemon& daemon = daemons_[restarted];
  daemon.keeper->Signal(SIGTERM);
  RETURN_IF_ERROR(daemon.keeper->AwaitExit(kPatience).status());
  return Return(restarted);
}

absl::StatusOr<std::set<int>> KeptServer::ActiveNodes(int daemon, const std::string& model) const {
  ASSIGN_OR_RETURN(
      const nlohmann::json models,
      Json(absl::StrCat(options_.ctl, " --socket-dir=", daemons_[daemon].directory.path(), " -o json models 2>&1")));
  if (!models.is_object()) return absl::UnavailableError("no server answers");
  for (const nlohmann::json& answer : models.value("models", nlohmann::json::array())) {
    if (answer.value("name", "") != model || !answer.value("running", false)) continue;
    auto active = answer.value("activeNodes", std::set<int>());
    if (!active.empty()) return active;
    for (int node = 0; node < daemons(); ++node) active.insert(node);
    return active;
  }
  return std::set<int>();
}

absl::Status KeptServer::AwaitNext(Daemon& daemon, pid_t killed) const {
  const auto is_followed = [&]() -> absl::StatusOr<bool> {
    const absl::StatusOr<pid_t> pid = ServerPid(daemon);
    if (!pid.ok() || *pid == daemon.server || *pid == killed) return false;
    daemon.server = *pid;
    return true;
  };
  ASSIGN_OR_RETURN(const bool followed, Poll({.timeout = kPatience}, is_followed));
  return followed ? absl::OkStatus() : absl::DeadlineExceededError("a server expected after one that was killed");
}

absl::StatusOr<std::string> KeptServer::StateHash(const std::string& model) const {
  std::vector<std::string> hashes;
  for (const Daemon& daemon : daemons_) {
    ASSIGN_OR_RETURN(
        const nlohmann::json verified,
        Json(absl::StrCat(options_.ctl, " --socket-dir=", daemon.directory.path(), " -o json verify --quiet ", model)));
    ASSIGN_OR_RETURN(const std::string hash, StateHashOf(verified));
    hashes.push_back(hash);
  }
  return absl::StrJoin(hashes, " ");
}

absl::StatusOr<KeptServer::FinishedSteps> KeptServer::StepsFinished(const std::string& model) const {
  FinishedSteps finished;
  for (const Daemon& daemon : daemons_) {
    std::ifstream log(daemon.site.log);
    int64_t taken_over = 0;
    for (std::string line; std::getline(log, line);) {
      if (!absl::StrContains(line, absl::StrCat(" model taken over model=", model, " "))) continue;
      ++taken_over;
      if (!absl::StrContains(line, RecoveryActionName(server::RecoveryAction::kRedoApply))) continue;
      ++finished.steps;
      ASSIGN_OR_RETURN(const int64_t torn, NumberIn(line, " torn_bands="));
      finished.torn_bands += torn;
    }
    // Of a log without these lines nobody could tell that no step was finished.
    if (taken_over >= daemon.kills) continue;
    return absl::InternalError(absl::StrCat("model ", model, " taken over after each of ", daemon.kills,
                                            " kills expected, got ", taken_over, " in the log"));
  }
  return finished;
}

}  // namespace paramshard::test
