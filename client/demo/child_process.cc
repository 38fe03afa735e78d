#include "client/demo/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"

namespace paramshard::demo {
namespace {

constexpr absl::Duration kExitPollInterval = absl::Milliseconds(2);
constexpr size_t kQuotedBytes = 2000;
constexpr int kExecFailed = 127;

std::string ReadAll(const std::string& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string LastLines(const std::string& file) {
  const std::string text = ReadAll(file);
  return text.size() <= kQuotedBytes ? text : text.substr(text.size() - kQuotedBytes);
}

// Runs between fork and exec: makes only async-signal-safe calls.
[[noreturn]] void Become(char* const* arguments, int output, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before prctl.
  if (getppid() != parent) _exit(kExecFailed);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execv(arguments[0], arguments);
  _exit(kExecFailed);
}

ExitState FromWaitStatus(int status) {
  if (WIFSIGNALED(status)) return {.signal = WTERMSIG(status)};
  return {.code = WEXITSTATUS(status)};
}

}  // namespace

std::string ExitState::ToString() const {
  return signal != 0 ? absl::StrCat("signal ", signal, " (", strsignal(signal), ")") : absl::StrCat("exit code ", code);
}

absl::StatusOr<ChildProcess> ChildProcess::Start(const Spec& spec) {
  if (access(spec.arguments[0].c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat("start ", spec.name, ": cannot execute ", spec.arguments[0], ": ", strerror(errno)));
  }
  const int output = open(spec.output_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (output < 0)
    return absl::InternalError(absl::StrCat("start ", spec.name, ": ", spec.output_file, ": ", strerror(errno)));
  std::vector<char*> arguments;
  for (const std::string& argument : spec.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(arguments.data(), output, parent);
  close(output);
  if (pid < 0) return absl::ResourceExhaustedError(absl::StrCat("start ", spec.name, ": fork: ", strerror(errno)));
  return ChildProcess(spec, pid);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : spec_(std::move(other.spec_)), pid_(std::exchange(other.pid_, -1)), exit_(other.exit_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    Kill();
    spec_ = std::move(other.spec_);
    pid_ = std::exchange(other.pid_, -1);
    exit_ = other.exit_;
  }
  return *this;
}

ChildProcess::~ChildProcess() { Kill(); }

void ChildProcess::Kill() {
  if (pid_ < 0 || Poll().has_value()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::optional<ExitState> ChildProcess::Poll() {
  int status = 0;
  if (!exit_.has_value() && waitpid(pid_, &status, WNOHANG) == pid_) exit_ = FromWaitStatus(status);
  return exit_;
}

absl::StatusOr<ExitState> ChildProcess::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!Poll().has_value()) {
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(spec_.name, ": timed out after ", absl::FormatDuration(timeout), ", still running"));
    }
    absl::SleepFor(kExitPollInterval);
  }
  return *exit_;
}

absl::Status ChildProcess::WaitForSuccess(absl::Duration timeout) {
  ASSIGN_OR_RETURN(const ExitState exit, Wait(timeout));
  return exit.ok() ? absl::OkStatus() : Failed(exit);
}

absl::Status ChildProcess::CheckRunning() {
  const std::optional<ExitState> exit = Poll();
  return exit.has_value() ? Failed(*exit) : absl::OkStatus();
}

absl::Status ChildProcess::Failed(const ExitState& exit) const {
  return absl::InternalError(
      absl::StrCat(spec_.name, " ended with ", exit.ToString(), "; its last output:\n", LastLines(spec_.output_file)));
}

void ChildProcess::Signal(int signal) {
  // A moved-from object has no process id, and kill(-1) would signal every process of the machine.
  if (pid_ > 0 && !Poll().has_value()) kill(pid_, signal);
}

absl::StatusOr<std::string> RunAndRead(const std::string& name, const std::vector<std::string>& arguments,
                                       const std::string& output_file, absl::Duration timeout) {
  std::error_code ignored;
  std::filesystem::remove(output_file, ignored);
  ASSIGN_OR_RETURN(ChildProcess child,
                   ChildProcess::Start({.name = name, .arguments = arguments, .output_file = output_file}));
  RETURN_IF_ERROR(child.WaitForSuccess(timeout));
  return ReadAll(output_file);
}

}  // namespace paramshard::demo
