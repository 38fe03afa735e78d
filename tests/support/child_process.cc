#include "tests/support/child_process.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/shared_memory/futex.h"
#include "kernels/base/status_macros.h"
#include "tests/support/daemon_process.h"

namespace {
bool is_child = false;
}  // namespace

// LeakSanitizer calls this function by name. It must not check children: their parents' other threads have no stacks
// there, so memory of these threads looks leaked.
extern "C" int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return is_child ? 1 : 0; }

namespace paramshard::test {
ChildProcess ChildProcess::Run(const std::function<absl::Status(Board&)>& function) {
  void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* board = new (memory) Board;
  const pid_t pid = fork();
  if (pid != 0) return ChildProcess(pid, board);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  is_child = true;
  const absl::Status status = function(*board);
  board->code = static_cast<int32_t>(status.code());
  if (!status.ok()) std::snprintf(board->text, sizeof(board->text), "%s", std::string(status.message()).c_str());
  std::_Exit(status.ok() ? 0 : 1);
}

ChildProcess::~ChildProcess() {
  if (pid_ >= 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (board_ != nullptr) munmap(board_, sizeof(Board));
}

// An ended process has no id, and kill(-1) would signal every process of the machine.
void ChildProcess::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

absl::Status ChildProcess::Await(absl::Duration timeout) {
  ASSIGN_OR_RETURN(const int code, AwaitChild(pid_, timeout));
  pid_ = -1;
  if (code > 128) return absl::UnknownError(absl::StrCat("ended by signal ", code - 128));
  if (code != 0 && board_->code == 0) return absl::UnknownError(absl::StrCat("exited with ", code));
  return absl::Status(static_cast<absl::StatusCode>(board_->code), code == 0 ? "" : board_->text);
}

bool ChildProcess::AwaitStopped() const { return test::AwaitStopped(pid_); }

bool AwaitNumber(Board& board, int index, uint32_t value, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::atomic<uint32_t>& word = board.numbers[index];
  for (uint32_t seen = word.load(); seen < value; seen = word.load()) {
    if (absl::Now() >= deadline) return false;
    wire::FutexWait(word, seen, deadline - absl::Now());
  }
  return true;
}

void Reach(Board& board, int index, uint32_t value) {
  board.numbers[index].store(value);
  wire::FutexWake(board.numbers[index]);
}

absl::StatusOr<std::string> OutputOf(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return absl::InternalError(absl::StrCat("run ", command, ": ", strerror(errno)));
  std::string output;
  char buffer[4096];
  for (size_t size; (size = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, size);
  const int status = pclose(pipe);
  if (status == 0) return output;
  return absl::InternalError(absl::StrCat("run ", command, ": exit status ", WEXITSTATUS(status), "\n", output));
}

}  // namespace paramshard::test
