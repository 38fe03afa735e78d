#include "tests/support/daemon_process.h"

#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/shared_memory/file_descriptor.h"
#include "kernels/base/status_macros.h"
#include "tests/support/environment.h"

namespace paramshard::test {

namespace {

// In the child, between fork and exec.
void Enter(const Surroundings& surroundings) {
  if (surroundings.network >= 0 && setns(surroundings.network, CLONE_NEWNET) != 0) _exit(127);
  if (surroundings.standard_error >= 0) dup2(surroundings.standard_error, STDERR_FILENO);
  for (int ignored : surroundings.ignored_signals) std::signal(ignored, SIG_IGN);
  // Tests of the server alone signal the process that they have started. A flag goes before this.
  setenv("PARAMSHARD_KEEPER", "off", /*overwrite=*/1);
  for (const auto& [name, value] : surroundings.environment) setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  for (const auto& [resource, limit] : surroundings.limits) {
    const rlimit limits{.rlim_cur = static_cast<rlim_t>(limit), .rlim_max = static_cast<rlim_t>(limit)};
    setrlimit(static_cast<__rlimit_resource>(resource), &limits);
  }
}

}  // namespace

DaemonProcess DaemonProcess::Spawn(const std::string& binary, const std::string& socket_dir,
                                   const std::vector<std::string>& flags, const Surroundings& surroundings) {
  std::vector<std::string> words{binary, absl::StrCat("--socket-dir=", socket_dir),
                                 absl::StrCat("--log-level=", EnvironmentOr("PARAMSHARD_TEST_LOG_LEVEL", "warning"))};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Enter(surroundings);
    execv(binary.c_str(), arguments.data());
    _exit(127);
  }
  return DaemonProcess(pid, socket_dir);
}

absl::StatusOr<DaemonProcess> DaemonProcess::Start(const std::string& binary, const std::string& socket_dir,
                                                   const std::vector<std::string>& flags, absl::Duration timeout,
                                                   const Surroundings& surroundings) {
  DaemonProcess daemon = Spawn(binary, socket_dir, flags, surroundings);
  RETURN_IF_ERROR(daemon.AwaitReady(timeout));
  return daemon;
}

namespace {

// A bare connection: gRPC in this process would not survive the forks of tests.
bool Answers(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  wire::FileDescriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

}  // namespace

// The daemon offers no event for this before its sockets are there: connecting is tried again until it succeeds,
// between bounded waits for the daemon's exit.
absl::Status DaemonProcess::AwaitReady(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (absl::Now() < deadline) {
    const absl::StatusOr<int> exit = AwaitChild(pid_, absl::Milliseconds(10));
    if (exit.ok()) {
      pid_ = -1;
      return absl::UnavailableError(absl::StrCat("paramshardd exited with ", *exit));
    }
    if (Answers(socket_dir_ + "/grpc.sock")) return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("paramshardd does not answer within ", absl::FormatDuration(timeout)));
}

DaemonProcess::~DaemonProcess() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

// An ended process has no id, and kill(-1) would signal every process of the machine.
void DaemonProcess::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

void DaemonProcess::Pause() const {
  Signal(SIGSTOP);
  AwaitStopped(pid_);
}

absl::StatusOr<int> DaemonProcess::AwaitExit(absl::Duration timeout) {
  ASSIGN_OR_RETURN(const int code, AwaitChild(pid_, timeout));
  pid_ = -1;
  return code;
}

absl::Duration DaemonProcess::CpuTime() const {
  std::ifstream file(absl::StrCat("/proc/", pid_, "/stat"));
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(line.rfind(')') + 2));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  int64_t user = 0;
  int64_t system = 0;
  fields >> user >> system;
  return absl::Seconds(1) * static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

absl::StatusOr<int> AwaitChild(pid_t pid, absl::Duration timeout) {
  wire::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  pollfd poll_fd{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  if (poll(&poll_fd, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) <= 0) {
    return absl::DeadlineExceededError(
        absl::StrCat("process ", pid, " still runs after ", absl::FormatDuration(timeout)));
  }
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) return absl::InternalError(absl::StrCat("waitpid ", pid));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool AwaitStopped(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, pid, &info, WSTOPPED | WEXITED | WNOWAIT) == 0 && info.si_code == CLD_STOPPED;
}

// The socket stays bound and does not listen: servers can bind the port too, because they reuse addresses, and the
// kernel assigns it to no other socket that asks for any port, and to no outgoing connection.
int FreePort() {
  const int reserved = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(reserved, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof(address);
  const bool bound = bind(reserved, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
                     getsockname(reserved, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  return bound ? ntohs(address.sin_port) : -1;
}

}  // namespace paramshard::test
