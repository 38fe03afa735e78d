// A real paramshardd in a process of its own, for tests and benchmarks.
#ifndef PARAMSHARD_TESTS_SUPPORT_DAEMON_PROCESS_H_
#define PARAMSHARD_TESTS_SUPPORT_DAEMON_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::test {

// Environment of the daemon's process, besides its flags.
struct Surroundings {
  int standard_error = -1;                           // a descriptor; -1: the parent's
  int network = -1;                                  // likewise, of a network namespace
  std::vector<std::pair<int, int64_t>> limits = {};  // RLIMIT_* and its value, soft and hard
  std::vector<int> ignored_signals = {};
  std::vector<std::pair<std::string, std::string>> environment = {};  // in addition to the parent's
};

// Killed with -9 at the end unless it has exited, and when its parent dies.
class DaemonProcess {
 public:
  // Starts the program with the flags and waits until it answers on its sockets. UNAVAILABLE with its exit status when
  // it exits instead; DEADLINE_EXCEEDED. `binary` is the path of paramshardd.
  static absl::StatusOr<DaemonProcess> Start(const std::string& binary, const std::string& socket_dir,
                                             const std::vector<std::string>& flags,
                                             absl::Duration timeout = absl::Seconds(60),
                                             const Surroundings& surroundings = {});
  // Without waiting: for daemons that wait for each other. AwaitReady follows.
  static DaemonProcess Spawn(const std::string& binary, const std::string& socket_dir,
                             const std::vector<std::string>& flags, const Surroundings& surroundings = {});
  absl::Status AwaitReady(absl::Duration timeout = absl::Seconds(60));

  DaemonProcess(DaemonProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), socket_dir_(std::move(other.socket_dir_)) {}
  ~DaemonProcess();

  pid_t pid() const { return pid_; }
  const std::string& socket_dir() const { return socket_dir_; }
  // Does nothing once the process has been waited for.
  void Signal(int signal) const;
  // Sends SIGSTOP and waits until it has stopped.
  void Pause() const;
  // The exit code, or 128 + the signal that ended it.
  absl::StatusOr<int> AwaitExit(absl::Duration timeout);
  // User and system time so far.
  absl::Duration CpuTime() const;

 private:
  DaemonProcess(pid_t pid, std::string socket_dir) : pid_(pid), socket_dir_(std::move(socket_dir)) {}

  pid_t pid_ = -1;
  std::string socket_dir_;
};

// Waits for a child: the exit code, or 128 + the signal that ended it.
absl::StatusOr<int> AwaitChild(pid_t pid, absl::Duration timeout);
// Waits until a child has stopped, for as long as it takes; false when it has ended instead.
bool AwaitStopped(pid_t pid);

// Returns a free port, which only servers of this test can bind before this process ends.
int FreePort();

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_SUPPORT_DAEMON_PROCESS_H_
