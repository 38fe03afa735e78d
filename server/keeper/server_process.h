// Server process, a child of the keeper.
#ifndef PARAMSHARD_SERVER_KEEPER_SERVER_PROCESS_H_
#define PARAMSHARD_SERVER_KEEPER_SERVER_PROCESS_H_

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/shared_memory/file_descriptor.h"
#include "server/base/server_command.h"

namespace paramshard::server {

// End of a server process.
struct ServerEnd {
  int exit_code = 0;
  int signal = 0;      // that killed it; else 0
  int exec_error = 0;  // errno of a failed exec; else 0

  // "exit code 3", "signal 9 (Killed)", "exec failed: No such file or directory".
  std::string Description() const;
  // The exit code as in a shell: 128 + the signal for a killed process.
  int Code() const { return signal != 0 ? 128 + signal : exit_code; }
};

// A descriptor of the keeper that the server inherits; the environment variable has its number.
struct LentDescriptor {
  std::string variable = {};
  int fd = -1;
};

// Owns the process. The process has its own process group, so that Ctrl-C reaches the keeper alone, and dies with the
// thread that has started it. It inherits standard input, output and error, its end of the socket
// (KeeperLink::kVariable), the lent descriptors, and those that the keeper itself was started with.
class ServerProcess {
 public:
  struct Options {
    ServerCommand command;
    // Descriptor of the file to execute, even if the command's path leads to another file by now; a script, and -1, is
    // executed by its path. The server must set its own process name from argv[0], the path: the kernel names it after
    // the number of the descriptor.
    int file = -1;
    // Signals blocked in the server until it waits for them.
    sigset_t blocked_signals = {};
    // /proc/PID/oom_score_adj; unset: the keeper's.
    std::optional<int> oom_score_adj = {};
    std::vector<LentDescriptor> lent = {};
  };

  // RESOURCE_EXHAUSTED no descriptors, memory or processes. Reap() reports a program that cannot be executed.
  static absl::StatusOr<ServerProcess> Start(const Options& options);

  ServerProcess(ServerProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        pidfd_(std::move(other.pidfd_)),
        socket_(std::move(other.socket_)),
        exec_error_(std::move(other.exec_error_)) {}
  // Kills the process unless it has ended, and waits for its end, at most ten seconds.
  ~ServerProcess();

  pid_t pid() const { return pid_; }
  // Readable once the process has ended, with all its threads and kernel resources.
  int pidfd() const { return pidfd_.get(); }
  // Releases the keeper's end of the socket.
  wire::FileDescriptor TakeSocket() { return std::move(socket_); }

  // Does nothing once the process has ended.
  void Signal(int signal) const;
  // Returns the end of the process, once; null while it runs. Never blocks.
  std::optional<ServerEnd> Reap();

 private:
  ServerProcess() = default;

  int ExecError() const;

  pid_t pid_ = -1;  // until it is reaped
  wire::FileDescriptor pidfd_;
  wire::FileDescriptor socket_;
  wire::FileDescriptor exec_error_;  // pipe with errno of a failed exec; empty after a successful one
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_SERVER_PROCESS_H_
