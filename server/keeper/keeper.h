// The process that outlives the server: starts it, keeps its memory, and starts it again.
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
#include "proto/wire/handoff.h"
#include "server/base/server_command.h"
#include "server/base/steady_time.h"
#include "server/keeper/kept_descriptors.h"
#include "server/keeper/restart_policy.h"
#include "server/keeper/server_connection.h"
#include "server/keeper/server_process.h"
#include "server/log/log.h"

namespace paramshard::server {

// One thread, which sleeps while nothing happens. A server that has ended is started again once its end is complete,
// and takes what is kept; between two lives nothing is lost but what the server had not given away. How it ended says
// what follows:
//
//   exit code 0, 4 or 5            it was told to end, if it was ready or a signal was passed on to it: the keeper ends
//                                  with that code (server/base/exit_codes.h)
//   kExitRestart                   it is started again at once, with the command that it has asked for by then
//   anything else                  it is started again, when RestartPolicy says so
//   anything else, while draining  it is started again once, to drain what is kept; then the keeper ends
//
// A program that ends before it is ready has failed, whatever its code. A command that was asked for is that of every
// start from then on, but gives way to the last one that became ready if it fails too often; servers are told so
// (KeeperLink::LastRestart). A program is the file that lay at its path when it was asked for: what is put in its place
// is started when a restart names that path. Where no command becomes ready, the keeper holds what is kept and waits
// for a signal; where nothing is kept, it ends with the server's code, and so it does when its very first server fails.
//
// Signals are those of the keeper's process. They are blocked in the server when it starts, and none is lost before it
// waits for them.
//
//   SIGTERM, SIGINT, SIGHUP    the first goes to the server, which drains and ends. Where there is no server and
//                              something is kept, the last command that became ready is started once more, to drain
//                              that. The second, unless it is a hang-up, kills the server, and the keeper ends with
//                              kExitInterrupted.
//   SIGUSR1                    goes to the server, which drains and exits with kExitRestart. Without a server it starts
//                              one now, as if none had failed, and where none was to be started any more from the file
//                              that lies at the path by then. After one of those above it is nothing.
//
// Models that the keeper's end takes along and that no server has drained are named in the log.
//
// A planned restart with another program or other arguments is KeeperLink::RequestRestart. When the keeper dies the
// kernel kills the server.
class Keeper {
 public:
  using LogFunction = std::function<void(LogLevel level, absl::string_view event, LogFields fields)>;

  struct Options {
    ServerCommand command;
    // The file at the command's path, which outlives what lies there; none: the keeper opens it.
    wire::FileDescriptor file = {};
    RestartPolicy::Options restarts;
    // What may be kept; nothing: what the limit of open files, which is raised as far as it may be, leaves room for.
    std::optional<KeptDescriptors::Limits> limits;
    // What every server has besides. The descriptors are the caller's, and stay open while the keeper runs.
    std::vector<LentDescriptor> lent = {};
    LogFunction log;  // must not block; none: nothing is logged
  };

  // Prepares the process: blocks the signals above, ignores SIGPIPE, raises its limit of open files and lowers its
  // score for the kernel's out-of-memory killer below the server's. Called once, by the only thread.
  // RESOURCE_EXHAUSTED without descriptors.
  static absl::StatusOr<std::unique_ptr<Keeper>> Create(Options options);

  // Serves until it ends; the code that the process is to exit with. By the thread that called Create: a server lives
  // as long as the thread that started it.
  int Run();

 private:
  // A command, and the file that is executed for it.
  struct Program {
    ServerCommand command;
    std::shared_ptr<const wire::FileDescriptor> file;  // of two that are asked for each has its own

    friend bool operator==(const Program& a, const Program& b) = default;
  };

  Keeper(Options options, sigset_t signals, wire::FileDescriptor signal_fd, std::optional<int> server_oom_score);

  // One turn of the loop.
  void Await();
  void TakeSignals();
  void ServeConnection();
  void NoticeEnd();
  void StartWhenDue();

  void OnSignal(int signal);
  void OnStopSignal(int signal);
  void OnRestartSignal();
  void OnReady(absl::string_view version);
  absl::Status OnRestartRequest(std::optional<ServerCommand> command);
  // What was put in its place is the next program, too.
  void LookForNewFile();

  void Start();
  void OnEnd(const ServerEnd& end);
  // Whether the present server was told to end so.
  bool WasToldTo(const ServerEnd& end) const;
  // `why`: how the server has ended, or why it was not started. `code`: with what the keeper ends unless another server
  // is started.
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

  KeptDescriptors kept_;
  RestartPolicy policy_;
  Program next_;                   // of the next server
  Program running_;                // of the one that was started last
  std::optional<Program> proven_;  // the last that became ready
  int64_t started_ = 0;            // servers
  std::string rollback_;           // why the last restart that was asked for was given up; empty: it was not

  // At most one of these is set: a server runs, one is to be started, or the keeper holds what is kept.
  std::optional<ServerProcess> server_;
  std::optional<SteadyTime> next_start_;

  std::optional<ServerConnection> connection_;  // to server_
  bool ready_ = false;                          // server_ has said so
  int stop_signal_ = 0;                         // that has come; else 0
  bool drained_again_ = false;                  // a second server was started to drain
  std::optional<int> exit_code_;                // set: the loop ends
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_KEEPER_H_
