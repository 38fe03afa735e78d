// Functions that run in processes of their own, as trainers do.
//
// A test whose children talk to a daemon must not have used gRPC before it forks.
#ifndef PARAMSHARD_TESTS_SUPPORT_CHILD_PROCESS_H_
#define PARAMSHARD_TESTS_SUPPORT_CHILD_PROCESS_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace paramshard::test {

// Memory that a test shares with its children: their progress, and orders to them.
struct Board {
  int32_t code = 0;      // absl::StatusCode of the child's end
  char text[4096] = {};  // its message, or other text
  std::atomic<uint32_t> numbers[16] = {};
};

// Raises board.numbers[index], waking AwaitNumber.
void Reach(Board& board, int index, uint32_t value);
// Waits until numbers[index] has reached a value.
bool AwaitNumber(Board& board, int index, uint32_t value, absl::Duration timeout);

// Killed with -9 at the end unless it has exited, and when its parent dies. Move-only.
class ChildProcess {
 public:
  // Runs the function in a child; its status goes to the board, and becomes the exit code (0 or 1) of _exit. A function
  // that succeeds may call exit(0) itself.
  static ChildProcess Run(const std::function<absl::Status(Board&)>& function);

  ChildProcess(ChildProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), board_(std::exchange(other.board_, nullptr)) {}
  ChildProcess& operator=(ChildProcess&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(board_, other.board_);
    return *this;
  }
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  Board& board() { return *board_; }
  // Does nothing once the process has been waited for.
  void Signal(int signal) const;

  // The function's status; UNKNOWN naming the signal when one ended the child, or the code of an exit of its own;
  // DEADLINE_EXCEEDED.
  absl::Status Await(absl::Duration timeout = absl::Seconds(60));

  // Waits until SIGSTOP has stopped it; false when it has ended instead.
  bool AwaitStopped() const;

  // Waits until numbers[index] has reached a value.
  bool AwaitNumber(int index, uint32_t value, absl::Duration timeout = absl::Seconds(60)) {
    return test::AwaitNumber(*board_, index, value, timeout);
  }

 private:
  ChildProcess(pid_t pid, Board* board) : pid_(pid), board_(board) {}

  pid_t pid_ = -1;
  Board* board_ = nullptr;
};

// The standard output of a program that exits with 0.
absl::StatusOr<std::string> OutputOf(const std::string& command);

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_SUPPORT_CHILD_PROCESS_H_
