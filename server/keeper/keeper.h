// Process that outlives the server: starts the server, keeps its memory, and restarts it.
#ifndef PARAMSHARD_SERVER_KEEPER_KEEPER_H_
#define PARAMSHARD_SERVER_KEEPER_KEEPER_H_

#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/shared_memory/file_descriptor.h"
#include "server/base/server_command.h"
#include "server/base/steady_time.h"
#include "server/keeper/descriptor_store.h"
#include "server/keeper/restart_policy.h"
#include "server/keeper/server_connection.h"
#include "server/keeper/server_process.h"
#include "server/observe/log.h"

namespace paramshard::server {

// One thread, which sleeps while nothing happens. Once a server has ended completely, the keeper starts the next one,
// which takes the kept memory; only memory that the server had not given to the keeper is lost. The server's end
// decides what follows:
//
//   exit code 0, 4, 5 or 7         after a stop, if the server was ready or a signal was passed on to it: the keeper
//                                  ends with that code (server/base/exit_codes.h)
//   kExitRestart                   an immediate restart, with the command that the server has requested
//   anything else                  a restart, as RestartPolicy decides
//   anything else, while draining  one restart, to drain the kept memory; then the keeper ends
//
// A program that ends before it is ready has failed, whatever its exit code. A requested command is used for every
// start from then on; if it fails too often, the keeper returns to the last command that became ready, and tells the
// server (KeeperLink::LastRestart). A program is the file that lay at its path when it was requested; a file that
// replaces it is started when a restart names the path again. If no command becomes ready, the keeper holds the kept
// memory and waits for a signal; if nothing is kept, or its first server fails, it ends with the server's code.
//
// Signals are sent to the keeper's process. They are blocked in a server at its start, so that none is lost before the
// server waits for them.
//
//   SIGTERM, SIGINT, SIGHUP    the first goes to the server, which drains and ends. Without a server, but with kept
//                              memory, the last command that became ready is started once more, to drain it. The
//                              second, unless it is SIGHUP, kills the server, and the keeper ends with
//                              kExitInterrupted.
//   SIGUSR1                    goes to the server, which drains and exits with kExitRestart. Without a server it starts
//                              one now, with failures forgotten; if the keeper had given up, it starts the file that is
//                              at the path now. Ignored after a signal above.
//
// When the keeper ends, the log names the models that no server has drained.
//
// KeeperLink::RequestRestart restarts with another program or other arguments. When the keeper dies, the kernel kills
// the server.
class Keeper {
 public:
  using LogFunction = std::function<void(LogLevel level, absl::string_view event, LogFields fields)>;

  struct Options {
    ServerCommand command;
    // The file of the command's program; unset: the keeper opens it.
    wire::FileDescriptor file = {};
    RestartPolicy::Options restarts;
    // Limits of kept descriptors; unset: as many as the hard limit of open files allows.
    std::optional<DescriptorStore::Limits> limits;
    // Descriptors that every server inherits. Owned by the caller; they stay open while the keeper runs.
    std::vector<LentDescriptor> lent = {};
    LogFunction log;  // must not block; unset: nothing is logged
  };

  // Prepares the process: blocks the signals above, ignores SIGPIPE, raises its limit of open files and lowers its
  // score for the kernel's out-of-memory killer below the server's. Called once, by the only thread.
  // RESOURCE_EXHAUSTED no descriptors.
  static absl::StatusOr<std::unique_ptr<Keeper>> Create(Options options);

  // Runs until the keeper ends; returns the exit code of the process. Called by the thread that called Create, because
  // a server dies with the thread that started it.
  int Run();

 private:
  // A command and its executable file.
  struct Program {
    ServerCommand command;
    std::shared_ptr<const wire::FileDescriptor> file;  // one per requested program

    friend bool operator==(const Program& a, const Program& b) = default;
  };

  Keeper(Options options, sigset_t signals, wire::FileDescriptor signal_fd, std::optional<int> server_oom_score);

  // One iteration of the loop.
  void Await();
  void TakeSignals();
  void ServeConnection();
  void NoticeEnd();
  void StartWhenDue();

  void OnSignal(int signal);
  void OnStopSignal(int signal);
  void OnRestartSignal();
  void OnReady();
  absl::Status OnRestartRequest(std::optional<ServerCommand> command);
  // Uses the file that is at the next program's path now.
  void LookForNewFile();

  void Start();
  void OnEnd(const ServerEnd& end);
  // Returns true if the server ended because it was told to.
  bool WasToldTo(const ServerEnd& end) const;
  // `why`: how the server ended, or why it failed to start. `code`: the keeper's exit code unless it starts another
  // server.
  void OnFailure(const std::string& why, int code);
  void OnFailureWhileStopping(const std::string& why, int code);
  void StartToDrain();
  void Hold(const std::string& why, int code);
  void EndLosing(const std::string& why, int code);
  int WaitMilliseconds() const;
  void Log(LogLevel level, absl::string_view event, LogFields fields = {}) const;

  // Constant after construction.
  const LogFunction log_;
  const sigset_t signals_;
  const wire::FileDescriptor signal_fd_;
  const std::optional<int> server_oom_score_;
  const std::vector<LentDescriptor> lent_;

  DescriptorStore kept_;
  RestartPolicy policy_;
  Program next_;                   // of the next server
  Program running_;                // of the server that was started last
  std::optional<Program> proven_;  // the last program that became ready
  int64_t started_ = 0;            // servers
  std::string rollback_;           // why the last requested restart failed; empty: it did not

  // At most one of these is set: a server runs, a start is scheduled, or the keeper only holds the kept memory.
  std::optional<ServerProcess> server_;
  std::optional<SteadyTime> next_start_;

  std::optional<ServerConnection> connection_;  // to server_
  bool ready_ = false;                          // server_ has reported so
  int stop_signal_ = 0;                         // that was received; else 0
  bool drained_again_ = false;                  // a second server was started to drain
  std::optional<int> exit_code_;                // set: the loop ends
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_KEEPER_H_
