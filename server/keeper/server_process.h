// A server that the keeper has started, from its start until it is known to have ended.
#ifndef PARAMSHARD_SERVER_KEEPER_SERVER_PROCESS_H_
#define PARAMSHARD_SERVER_KEEPER_SERVER_PROCESS_H_

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/handoff.h"
#include "server/base/server_command.h"

namespace paramshard::server {

// How a server has ended.
struct ServerEnd {
  int exit_code = 0;
  int signal = 0;      // that has ended it; else 0
  int exec_error = 0;  // errno, where the program could not be executed; else 0

  // "exit code 3", "signal 9 (Killed)", "no program that can be executed: No such file or directory".
  std::string Description() const;
  // As a shell says it: the exit code, or 128 + the signal.
  int Code() const { return signal != 0 ? 128 + signal : exit_code; }
};

// A descriptor of the keeper's that the server has, too: it finds its number there in that variable of its environment.
struct LentDescriptor {
  std::string variable = {};
  int fd = -1;
};

// Owns the process. It has a process group of its own, so that Ctrl-C reaches the keeper alone; it dies with the thread
// that has started it; of the keeper's descriptors it has standard input, output and error, its end of the socket
// (KeeperLink::kVariable), what is lent to it, and what the keeper itself was started with.
class ServerProcess {
 public:
  struct Options {
    ServerCommand command;
    // The file that is executed, whatever lies at the command's path, unless it is a script; -1: what lies there. The
    // process calls itself by its first argument, the path: the kernel names it after the number of a descriptor.
    int file = -1;
    // Signals that are blocked in it, and wait until it asks for them.
    sigset_t blocked_signals = {};
    // /proc/PID/oom_score_adj; nothing: the keeper's.
    std::optional<int> oom_score_adj = {};
    std::vector<LentDescriptor> lent = {};
  };

  // RESOURCE_EXHAUSTED without descriptors, memory or processes. A program that cannot be executed is told by its end.
  static absl::StatusOr<ServerProcess> Start(const Options& options);

  ServerProcess(ServerProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        pidfd_(std::move(other.pidfd_)),
        socket_(std::move(other.socket_)),
        exec_error_(std::move(other.exec_error_)) {}
  // Kills it unless it has ended, and waits for that, ten seconds at most.
  ~ServerProcess();

  pid_t pid() const { return pid_; }
  // Readable once it has ended: all its threads, and all that it had in the kernel.
  int pidfd() const { return pidfd_.get(); }
  // Gives up the keeper's end of the socket.
  wire::FileDescriptor TakeSocket() { return std::move(socket_); }

  // Nothing once it has ended.
  void Signal(int signal) const;
  // How it has ended, once; nothing while it runs. Never blocks.
  std::optional<ServerEnd> Reap();

 private:
  ServerProcess() = default;

  int ExecError() const;

  pid_t pid_ = -1;  // until it is reaped
  wire::FileDescriptor pidfd_;
  wire::FileDescriptor socket_;
  wire::FileDescriptor exec_error_;  // a pipe: errno of the exec, or closed by it
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_SERVER_PROCESS_H_
