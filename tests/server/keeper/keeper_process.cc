#include "tests/server/keeper/keeper_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/check.h"
#include "server/keeper/keeper_packet.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"

namespace paramshard::server {
namespace {

bool AwaitReadable(int fd, absl::Duration timeout) {
  pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) == 1;
}

// In the keeper's process. Lines go to the pipe: "event key=value ...".
[[noreturn]] void RunKeeper(Keeper::Options options, int log) {
  options.log = [log](LogLevel /*level*/, absl::string_view event, LogFields fields) {
    std::string line(event);
    for (const auto& [key, value] : fields) absl::StrAppend(&line, " ", key, "=", value);
    line += '\n';
    (void)!write(log, line.data(), line.size());
  };
  absl::StatusOr<std::unique_ptr<Keeper>> keeper = Keeper::Create(std::move(options));
  _exit(keeper.ok() ? (*keeper)->Run() : 100);
}

}  // namespace

KeeperProcess::KeeperProcess(const Options& options)
    : program_(options.program.empty() ? test::Program(KEEPER_TEST_SERVER) : options.program) {
  auto control = MakeKeeperSockets().value();
  control_ = std::move(control.first);
  servers_control_ = std::move(control.second);
  PARAMSHARD_CHECK(fcntl(servers_control_.get(), F_SETFD, 0) == 0);
  int log[2];
  PARAMSHARD_CHECK(pipe2(log, O_CLOEXEC) == 0);
  log_ = wire::FileDescriptor(log[0]);
  const wire::FileDescriptor log_writer(log[1]);
  const pid_t parent = getpid();
  pid_ = fork();
  PARAMSHARD_CHECK(pid_ >= 0);
  if (pid_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  close(control_.get());
  close(log_.get());
  for (int ignored : options.ignored_signals) std::signal(ignored, SIG_IGN);
  RunKeeper({.command = CommandWith(options.flags),
             .restarts = {.most_failed_starts = options.most_failed_starts,
                          .first_pause = options.pause,
                          .longest_pause = std::max(options.pause, absl::Seconds(10))},
             .limits = {},
             .log = {}},
            log_writer.get());
}

KeeperProcess::~KeeperProcess() {
  if (pid_ < 0) return;
  Signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

ServerCommand KeeperProcess::CommandWith(const std::vector<std::string>& flags) const {
  ServerCommand command{.program = program_, .arguments = {absl::StrCat("--control=", servers_control_.get())}};
  command.arguments.insert(command.arguments.end(), flags.begin(), flags.end());
  return command;
}

std::string KeeperProcess::Hear() {
  if (!AwaitReadable(control_.get(), kTimeout)) return "nothing is heard of a server";
  absl::StatusOr<KeeperPacket> packet = ReceiveKeeperPacket(control_.get());
  if (!packet.ok()) return packet.status().ToString();
  if (!packet->fds.empty()) descriptor_ = std::move(packet->fds.front());
  return packet->bytes;
}

std::string KeeperProcess::AwaitBegin() {
  const std::string heard = Hear();
  const std::vector<std::string> words = absl::StrSplit(heard, absl::MaxSplits(' ', 2));
  if (words.front() != "begun" || words.size() != 3 || !absl::SimpleAtoi(words[1], &server_pid_)) return heard;
  server_pidfd_ = wire::FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, server_pid_, 0)));
  return words[2];
}

std::string KeeperProcess::Ask(const std::string& words) {
  Tell(words);
  return Hear();
}

void KeeperProcess::Tell(const std::string& words) const {
  PARAMSHARD_CHECK(SendKeeperPacket(control_.get(), words, {}).ok());
}

std::string KeeperProcess::AwaitLog(const std::string& text) {
  while (true) {
    for (size_t end = lines_.find('\n'); end != lines_.npos; end = lines_.find('\n')) {
      const std::string line = lines_.substr(0, end);
      lines_.erase(0, end + 1);
      if (absl::StrContains(line, text)) return line;
    }
    char more[1024];
    const ssize_t size = AwaitReadable(log_.get(), kTimeout) ? read(log_.get(), more, sizeof(more)) : 0;
    if (size <= 0) return "the keeper logs nothing of that";
    lines_.append(more, size);
  }
}

bool KeeperProcess::AwaitServerEnd() const {
  return server_pidfd_.valid() && AwaitReadable(server_pidfd_.get(), kTimeout);
}

void KeeperProcess::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

absl::StatusOr<int> KeeperProcess::AwaitExit() {
  const absl::StatusOr<int> code = test::AwaitChild(pid_, kTimeout);
  if (code.ok()) pid_ = -1;
  return code;
}

}  // namespace paramshard::server
