#include "server/keeper/server_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/keeper/keeper_link.h"
#include "server/keeper/keeper_packet.h"

namespace paramshard::server {
namespace {

constexpr int kExecFailed = 127;
constexpr int kKillMilliseconds = 10'000;

absl::Status StartError(absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat("failed to start a server: ", what, ": ", strerror(errno)));
}

// Data of the child, made before the fork: between fork and exec nothing may be allocated.
struct Plan {
  std::vector<std::string> words = {};
  std::vector<std::string> variables = {};
  std::vector<char*> argv = {};
  std::vector<char*> envp = {};
  int file = -1;
  std::string oom_score_adj = {};
  sigset_t blocked_signals = {};
  pid_t keeper = -1;
  std::vector<int> inherited = {};  // close-on-exec in the keeper, but not in the server
  int exec_error = -1;
};

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

bool IsOneOf(const std::vector<LentDescriptor>& lent, absl::string_view entry) {
  const auto is_it = [entry](const LentDescriptor& one) {
    return absl::StartsWith(entry, absl::StrCat(one.variable, "="));
  };
  return std::any_of(lent.begin(), lent.end(), is_it);
}

void Fill(Plan& plan, const ServerProcess::Options& options, int socket) {
  plan.words.push_back(options.command.program);
  plan.words.insert(plan.words.end(), options.command.arguments.begin(), options.command.arguments.end());
  std::vector<LentDescriptor> lent = options.lent;
  lent.push_back({.variable = KeeperLink::kVariable, .fd = socket});
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!IsOneOf(lent, *entry)) plan.variables.emplace_back(*entry);
  }
  for (const LentDescriptor& one : lent) {
    plan.variables.push_back(absl::StrCat(one.variable, "=", one.fd));
    plan.inherited.push_back(one.fd);
  }
  plan.argv = Pointers(plan.words);
  plan.envp = Pointers(plan.variables);
  plan.file = options.file;
  if (options.oom_score_adj.has_value()) plan.oom_score_adj = absl::StrCat(*options.oom_score_adj);
  plan.blocked_signals = options.blocked_signals;
  plan.keeper = getpid();
}

// Ignores errors: without the score the server works, too.
void WriteOomScore(const std::string& score) {
  if (score.empty()) return;
  const int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  (void)!write(file, score.data(), score.size());
  close(file);
}

// Returns if exec fails. A script is executed by its path, because its interpreter could not open a file that exec
// closes.
void Execute(const Plan& plan) {
  if (plan.file >= 0) {
    syscall(SYS_execveat, plan.file, "", plan.argv.data(), plan.envp.data(), AT_EMPTY_PATH);
    if (errno != ENOENT) return;
  }
  execve(plan.argv.front(), plan.argv.data(), plan.envp.data());
}

// Runs in the child; makes only system calls.
[[noreturn]] void Become(const Plan& plan) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // PR_SET_PDEATHSIG does not report a keeper that died before.
  if (getppid() != plan.keeper) _exit(kExecFailed);
  setpgid(0, 0);
  WriteOomScore(plan.oom_score_adj);
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  sigaction(SIGPIPE, &usual, nullptr);
  sigprocmask(SIG_SETMASK, &plan.blocked_signals, nullptr);
  for (const int fd : plan.inherited) fcntl(fd, F_SETFD, 0);
  Execute(plan);
  const int error = errno;
  (void)!write(plan.exec_error, &error, sizeof(error));
  _exit(kExecFailed);
}

}  // namespace

std::string ServerEnd::Description() const {
  if (exec_error != 0) return absl::StrCat("exec failed: ", strerror(exec_error));
  if (signal != 0) return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
  return absl::StrCat("exit code ", exit_code);
}

absl::StatusOr<ServerProcess> ServerProcess::Start(const Options& options) {
  ASSIGN_OR_RETURN(auto sockets, MakeKeeperSockets());
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) != 0) return StartError("make a pipe");
  const wire::FileDescriptor exec_error_writer(pipe_ends[1]);
  ServerProcess process;
  process.exec_error_ = wire::FileDescriptor(pipe_ends[0]);
  process.socket_ = std::move(sockets.first);
  Plan plan{.exec_error = exec_error_writer.get()};
  Fill(plan, options, sockets.second.get());
  const pid_t pid = fork();
  if (pid == 0) Become(plan);
  if (pid < 0) return StartError("fork");
  process.pid_ = pid;
  // The process is not reaped yet, so the pid is still its own.
  process.pidfd_ = wire::FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.pidfd_.valid()) return StartError("pidfd_open");
  return process;
}

ServerProcess::~ServerProcess() {
  if (pid_ < 0) return;
  Signal(SIGKILL);
  pollfd ended{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  // Without a pidfd, right after the fork, waitpid blocks instead.
  if (pidfd_.valid()) poll(&ended, 1, kKillMilliseconds);
  waitpid(pid_, nullptr, pidfd_.valid() ? WNOHANG : 0);
}

void ServerProcess::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

std::optional<ServerEnd> ServerProcess::Reap() {
  int status = 0;
  if (pid_ < 0 || waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = -1;
  if (WIFSIGNALED(status)) return ServerEnd{.signal = WTERMSIG(status)};
  return ServerEnd{.exit_code = WEXITSTATUS(status), .exec_error = ExecError()};
}

// A successful exec closes the pipe, which is empty then.
int ServerProcess::ExecError() const {
  int error = 0;
  return read(exec_error_.get(), &error, sizeof(error)) == sizeof(error) ? error : 0;
}

}  // namespace paramshard::server
