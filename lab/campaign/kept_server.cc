#include "lab/campaign/kept_server.h"

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
#include "common/shared_memory/file_descriptor.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "lab/campaign/world.h"
#include "nlohmann/json.hpp"
#include "server/journal/recovery.h"

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

// Returns the keeper's child, serving or not; -1: none.
pid_t ChildOf(pid_t keeper) {
  pid_t child = -1;
  std::ifstream children(absl::StrCat("/proc/", keeper, "/task/", keeper, "/children"));
  return (children >> child) ? child : -1;
}

// Waits for a child of the keeper other than `before`.
absl::StatusOr<pid_t> AwaitChild(pid_t keeper, pid_t before) {
  pid_t child = -1;
  const auto is_there = [&]() -> absl::StatusOr<bool> {
    child = ChildOf(keeper);
    return child != -1 && child != before;
  };
  ASSIGN_OR_RETURN(const bool there, Poll({.timeout = kTimeout}, is_there));
  if (there) return child;
  return absl::DeadlineExceededError("timed out waiting for a server after a kill");
}

// Returns the number behind the text, up to the end of the word.
absl::StatusOr<int64_t> NumberIn(const std::string& line, const std::string& text) {
  const size_t at = line.find(text);
  int64_t number = 0;
  if (at != std::string::npos) {
    const size_t begin = at + text.size();
    if (absl::SimpleAtoi(line.substr(begin, line.find(' ', begin) - begin), &number)) return number;
  }
  return absl::InternalError(absl::StrCat("want a number behind", text, ", got ", line));
}

// Timeout of a trainer that waits for others to come again. Pauses between servers that are killed repeatedly grow:
// all kills of a round may take minutes.
const absl::Duration kTrainerTimeout = 5 * kTimeout;

// Ends this trainer.
[[noreturn]] void Fail(Board& board, const std::string& why) {
  board.code = static_cast<int32_t>(absl::StatusCode::kInternal);
  absl::SNPrintF(board.text, sizeof(board.text), "%s", why);
  std::_Exit(1);
}

void AwaitLeave(Board& board, int64_t commit) {
  Reach(board, kAtCommit, static_cast<uint32_t>(commit));
  if (AwaitNumber(board, kMayCommit, static_cast<uint32_t>(commit), kTrainerTimeout)) return;
  Fail(board, absl::StrCat("commit ", commit, ": timed out waiting for permission to begin it"));
}

// Records that the trainer was told the end of its epoch, once per epoch.
void ReachEnd(Board& board) {
  if (board.numbers[kEndedEpoch] == board.numbers[kEpoch]) return;
  Reach(board, kEndedAtMs, static_cast<uint32_t>(absl::ToUnixMillis(absl::Now())));
  Reach(board, kEndedEpoch, board.numbers[kEpoch]);
}

}  // namespace

void KeepStacks(pid_t process, const std::string& file) {
  (void)OutputOf(absl::StrCat("timeout 30 gdb -p ", process, " -batch -ex 'thread apply all backtrace' >", file,
                              " 2>/dev/null </dev/null"));
}

absl::StatusOr<KeptServer> KeptServer::Start(const CampaignOptions& options, Shape shape) {
  Spec spec{.shape = shape, .sites = {}, .commits = kCommits};
  if (shape == Shape::kOneDaemon) {
    spec.sites.push_back({.flags = {}, .devices = options.devices});
    return Start(options, std::move(spec));
  }
  const std::string address = absl::StrCat("--cluster-address=127.0.0.1:", FreePort());
  for (const std::string& device : options.devices) spec.sites.push_back({.flags = {address}, .devices = {device}});
  return Start(options, std::move(spec));
}

absl::StatusOr<KeptServer> KeptServer::Start(const CampaignOptions& options, Spec spec) {
  const std::vector<Site> sites = std::exchange(spec.sites, {});
  KeptServer world(options, std::move(spec));
  for (Site site : sites) {
    const int node = world.daemons();
    world.daemon_of_rank_.insert(world.daemon_of_rank_.end(), site.devices.size(), node);
    site.flags.push_back(absl::StrCat("--device=", absl::StrJoin(site.devices, ",")));
    if (sites.size() > 1) {
      site.flags.push_back(absl::StrCat("--nodes=", sites.size()));
      site.flags.push_back(absl::StrCat("--node=", node));
    }
    RETURN_IF_ERROR(world.Add(std::move(site)));
  }
  for (int node = 0; node < world.daemons(); ++node) RETURN_IF_ERROR(world.AwaitServing(node));
  return world;
}

absl::Status KeptServer::Add(Site site) {
  site.flags.insert(site.flags.end(), {"--keeper=on", "--log-level=info"});
  TemporaryDirectory directory;
  if (site.log.empty()) site.log = directory.path() + "/log";
  daemons_.push_back({.directory = std::move(directory), .site = std::move(site)});
  return Spawn(daemons() - 1);
}

absl::Status KeptServer::Spawn(int node) {
  Daemon& daemon = daemons_[node];
  const wire::FileDescriptor log(open(daemon.site.log.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return absl::ErrnoToStatus(errno, "open a log");
  Surroundings surroundings = daemon.site.surroundings;
  surroundings.standard_error = log.get();
  daemon.keeper.emplace(
      DaemonProcess::Spawn(options_.daemon, daemon.directory.path(), daemon.site.flags, surroundings));
  return absl::OkStatus();
}

absl::Status KeptServer::AwaitServing(int node) {
  Daemon& daemon = daemons_[node];
  absl::Status status = daemon.keeper->AwaitReady(kTimeout);
  absl::StatusOr<pid_t> server = status.ok() ? ServerPid(daemon) : status;
  if (server.ok()) daemon.server = *server;
  if (server.ok()) return absl::OkStatus();
  return absl::Status(server.status().code(), absl::StrCat("start node ", node, ": ", server.status().message(),
                                                           "; its log ends with\n", EndOf(daemon.site.log)));
}

// The server ends with its keeper, and the kept state is lost. Only then is the folder of sockets free.
absl::Status KeptServer::Leave(int left) {
  Daemon& daemon = daemons_[left];
  ASSIGN_OR_RETURN(const pid_t server, AwaitChild(daemon.keeper->pid(), /*before=*/-1));
  const wire::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, server, 0)));
  if (!pidfd.valid()) return absl::ErrnoToStatus(errno, "pidfd_open");
  daemon.keeper->Signal(SIGKILL);
  RETURN_IF_ERROR(daemon.keeper->AwaitExit(kTimeout).status());
  pollfd gone{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  if (poll(&gone, 1, static_cast<int>(absl::ToInt64Milliseconds(kTimeout))) == 1) return absl::OkStatus();
  return absl::DeadlineExceededError("timed out waiting for a server to end after its keeper");
}

absl::Status KeptServer::Return(int left) {
  RETURN_IF_ERROR(Spawn(left));
  return AwaitServing(left);
}

absl::Status KeptServer::Lose(int lost, absl::Span<const absl::Duration> followers) {
  for (size_t follower = 0; follower <= followers.size(); ++follower) {
    RETURN_IF_ERROR(Leave(lost));
    RETURN_IF_ERROR(Spawn(lost));
    // Waits for no event, to hit any time of the start and of the healing.
    if (follower < followers.size()) absl::SleepFor(followers[follower]);
  }
  return AwaitServing(lost);
}

Training KeptServer::TrainingOf(const std::string& model, int rank) const {
  Training training{.socket_dir = daemons_[daemon_of_rank_[rank]].directory.path(),
                    .model = model,
                    .rows_factor = options_.rows_factor,
                    .scaled = spec_.shape != Shape::kOneDaemon,
                    .rank = rank,
                    .commits = spec_.commits,
                    .elastic = spec_.shape == Shape::kElastic,
                    .restart_timeout = spec_.restart_timeout};
  if (spec_.shape == Shape::kShards) training.shard_size = ranks();
  return training;
}

ChildProcess KeptServer::StartTrainer(const std::string& model, int rank, int64_t answered) const {
  ChildProcess trainer = ChildProcess::Run([training = TrainingOf(model, rank), answered](Board& board) mutable {
    absl::Time latest = absl::Now() + kTrainerTimeout;
    training.resume = false;  // but by the loop below, which tells of each end
    training.opened = [&](const Model& model) {
      Reach(board, kPlace, 0);
      Reach(board, kEpoch, static_cast<uint32_t>(model.epoch()));
    };
    training.at = [&](Point point, int64_t commit) {
      if (point == Point::kStart && commit <= answered) {
        Fail(board, absl::StrCat("next commit: want ", answered + 1, ", got ", commit));
      }
      if (point == Point::kStart) AwaitLeave(board, commit);
      Reach(board, kPlace, PlaceOf(commit, point));
      if (point != Point::kCommitted) return;
      answered = commit;
      Reach(board, kAnswered, static_cast<uint32_t>(answered));
      latest = absl::Now() + kTrainerTimeout;
    };
    absl::Status status = absl::UnavailableError("not yet");
    // A server that stands still for longer than a connection waits for its welcome is DEADLINE_EXCEEDED.
    const auto may_come_right = [&] {
      return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsAborted(status);
    };
    while (may_come_right() && absl::Now() < latest) {
      status = Train(training);
      if (!status.ok()) ReachEnd(board);
    }
    return status;
  });
  // For one that takes this one's place; it has no leave yet, and so no answer of its own.
  Reach(trainer.board(), kAnswered, static_cast<uint32_t>(answered));
  return trainer;
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
  for (const int daemon : daemons) ++daemons_[daemon].kills;
  RETURN_IF_ERROR(End(daemons, absl::ZeroDuration(), signals.front()));
  for (size_t follower = 0; follower < followers.size(); ++follower) {
    RETURN_IF_ERROR(End(daemons, followers[follower], signals[1 + follower]));
  }
  return AwaitNext(daemons);
}

absl::Status KeptServer::End(absl::Span<const int> daemons, absl::Duration after, int signal) {
  for (const int number : daemons) {
    Daemon& daemon = daemons_[number];
    // Looks nothing up while a server serves: moments of a step are short.
    if (daemon.server != daemon.ended) {
      daemon.ended = daemon.server;
    } else {
      ASSIGN_OR_RETURN(daemon.ended, AwaitChild(daemon.keeper->pid(), /*before=*/daemon.ended));
      daemon.server = daemon.ended;
    }
  }
  if (after > absl::ZeroDuration()) absl::SleepFor(after);
  for (const int daemon : daemons) kill(daemons_[daemon].ended, signal);
  return absl::OkStatus();
}

absl::Status KeptServer::AwaitNext(absl::Span<const int> daemons) {
  for (const int daemon : daemons) RETURN_IF_ERROR(AwaitNext(daemons_[daemon]));
  return absl::OkStatus();
}

absl::Status KeptServer::Restart(int restarted) {
  Daemon& daemon = daemons_[restarted];
  daemon.keeper->Signal(SIGTERM);
  RETURN_IF_ERROR(daemon.keeper->AwaitExit(kTimeout).status());
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

absl::Status KeptServer::AwaitNext(Daemon& daemon) const {
  const auto is_followed = [&]() -> absl::StatusOr<bool> {
    // Asking a server that has not started would take the processor from servers that start.
    const pid_t child = ChildOf(daemon.keeper->pid());
    if (child == -1 || child == daemon.server) return false;
    const absl::StatusOr<pid_t> pid = ServerPid(daemon);
    if (!pid.ok() || *pid == daemon.server) return false;
    daemon.server = *pid;
    return true;
  };
  ASSIGN_OR_RETURN(const bool followed, Poll({.timeout = kTimeout}, is_followed));
  return followed ? absl::OkStatus() : absl::DeadlineExceededError("timed out waiting for a server after a kill");
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
      ASSIGN_OR_RETURN(const int64_t torn, NumberIn(line, " interrupted_bands="));
      finished.torn_bands += torn;
    }
    // Without these lines the log would not prove that no step was finished.
    if (taken_over >= daemon.kills) continue;
    return absl::InternalError(absl::StrCat("want model ", model, " taken over after each of ", daemon.kills,
                                            " kills, got ", taken_over, " in the log"));
  }
  return finished;
}

}  // namespace paramshard::test
