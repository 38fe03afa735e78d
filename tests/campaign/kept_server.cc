#include "tests/campaign/kept_server.h"

#include <fcntl.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "proto/wire/handoff.h"
#include "tests/campaign/world.h"

namespace paramshard::test {
namespace {

std::string LogPath(const TemporaryDirectory& directory) { return directory.path() + "/log"; }

absl::StatusOr<nlohmann::json> Json(const std::string& command) {
  ASSIGN_OR_RETURN(const std::string output, OutputOf(command));
  return nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
}

void AwaitLeaveToEnd(Board& board) {
  const absl::StatusOr<bool> may_end =
      Poll({.timeout = kPatience}, [&]() -> absl::StatusOr<bool> { return board.numbers[kMayEnd] != 0; });
  if (!may_end.value_or(false)) std::_Exit(3);
}

}  // namespace

KeptServer::KeptServer(const CampaignOptions& options, TemporaryDirectory directory, DaemonProcess daemon)
    : options_(options), directory_(std::move(directory)), daemon_(std::move(daemon)) {}

absl::StatusOr<KeptServer> KeptServer::Start(const CampaignOptions& options) {
  TemporaryDirectory directory;
  const wire::FileDescriptor log(open(LogPath(directory).c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return absl::ErrnoToStatus(errno, "open a log");
  ASSIGN_OR_RETURN(DaemonProcess daemon,
                   DaemonProcess::Start(options.daemon, directory.path(),
                                        {absl::StrCat("--device=", absl::StrJoin(options.devices, ",")), "--keeper=on",
                                         "--log-level=info"},
                                        kPatience, {.standard_error = log.get()}));
  KeptServer server(options, std::move(directory), std::move(daemon));
  ASSIGN_OR_RETURN(server.server_, server.ServerPid());
  return server;
}

Training KeptServer::TrainingOf(const std::string& model, int rank) const {
  return {.socket_dir = directory_.path(),
          .model = model,
          .rows_factor = options_.rows_factor,
          .rank = rank,
          .commits = kCommits};
}

ChildProcess KeptServer::StartTrainer(const std::string& model, int rank) const {
  return ChildProcess::Run([training = TrainingOf(model, rank)](Board& board) mutable {
    int64_t answered = 0;
    training.at = [&board, &answered](Point point, int64_t commit) {
      if (point == Point::kStart && commit <= answered) std::_Exit(2);
      if (point == Point::kStart && commit == kCommits) AwaitLeaveToEnd(board);
      if (point == Point::kStart) Reach(board, kBegunCommit, static_cast<uint32_t>(commit));
      if (point == Point::kCommitting) Reach(board, kSentCommit, static_cast<uint32_t>(commit));
      if (point == Point::kCommitted) answered = commit;
    };
    absl::Status status = absl::UnavailableError("not yet");
    for (const absl::Time latest = absl::Now() + kPatience; absl::IsUnavailable(status) && absl::Now() < latest;) {
      status = Train(training);
    }
    return status;
  });
}

absl::StatusOr<pid_t> KeptServer::ServerPid() const {
  ASSIGN_OR_RETURN(const nlohmann::json version,
                   Json(absl::StrCat(options_.ctl, " --socket-dir=", directory_.path(), " -o json version 2>&1")));
  if (!version.is_object()) return absl::UnavailableError("no server answers");
  return static_cast<pid_t>(std::stol(version["pid"].get<std::string>()));
}

absl::StatusOr<pid_t> KeptServer::AwaitChild(pid_t before) const {
  pid_t child = -1;
  const auto is_there = [&]() -> absl::StatusOr<bool> {
    std::ifstream children(absl::StrCat("/proc/", daemon_.pid(), "/task/", daemon_.pid(), "/children"));
    return (children >> child) && child != before;
  };
  ASSIGN_OR_RETURN(const bool there, Poll({.timeout = kPatience}, is_there));
  if (there) return child;
  return absl::DeadlineExceededError("a server expected after one that was killed");
}

absl::Status KeptServer::Kill(absl::Span<const absl::Duration> followers) {
  kill(server_, SIGKILL);
  pid_t killed = server_;
  for (const absl::Duration after : followers) {
    ASSIGN_OR_RETURN(killed, AwaitChild(killed));
    absl::SleepFor(after);
    kill(killed, SIGKILL);
  }
  const auto is_followed = [&]() -> absl::StatusOr<bool> {
    const absl::StatusOr<pid_t> pid = ServerPid();
    if (!pid.ok() || *pid == server_ || *pid == killed) return false;
    server_ = *pid;
    return true;
  };
  ASSIGN_OR_RETURN(const bool followed, Poll({.timeout = kPatience}, is_followed));
  return followed ? absl::OkStatus() : absl::DeadlineExceededError("a server expected after one that was killed");
}

absl::StatusOr<std::string> KeptServer::StateHash(const std::string& model) const {
  ASSIGN_OR_RETURN(const nlohmann::json verified, Json(absl::StrCat(options_.ctl, " --socket-dir=", directory_.path(),
                                                                    " -o json verify --quiet ", model)));
  return verified.value("/summary/stateHash"_json_pointer, std::string());
}

absl::StatusOr<int64_t> KeptServer::StepsFinished() const {
  ASSIGN_OR_RETURN(const std::string count,
                   OutputOf(absl::StrCat("grep --count 'redo the apply' ", LogPath(directory_), " || true")));
  return std::stol(count);
}

}  // namespace paramshard::test
