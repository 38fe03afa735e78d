// A real keeper in its own process; its servers (test_server.cc) obey the test.
#ifndef PARAMSHARD_TESTS_SERVER_KEEPER_KEEPER_PROCESS_H_
#define PARAMSHARD_TESTS_SERVER_KEEPER_KEEPER_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/shared_memory/file_descriptor.h"
#include "server/base/server_command.h"
#include "server/keeper/keeper.h"

namespace paramshard::server {

// Every wait ends after half a minute, with a text that no test expects. Killed with -9 at the end, and when the test
// dies.
class KeeperProcess {
 public:
  struct Options {
    std::string program = {};             // empty: test_server.cc's
    std::vector<std::string> flags = {};  // of the first server
    int most_failed_starts = 5;
    absl::Duration pause = absl::Milliseconds(1);  // before the second restart in a row; the first is at once
    std::vector<int> ignored_signals = {};
  };

  KeeperProcess() : KeeperProcess(Options{}) {}
  explicit KeeperProcess(const Options& options);
  KeeperProcess(const KeeperProcess&) = delete;
  KeeperProcess& operator=(const KeeperProcess&) = delete;
  ~KeeperProcess();

  // Returns the command of test_server.cc's program with those flags and the connection to the test.
  ServerCommand CommandWith(const std::vector<std::string>& flags) const;

  // Returns the next message of a server, of any life.
  std::string Hear();
  // Waits until a server says that it has begun: "begun NAMES" of what it has taken. Returns the names.
  std::string AwaitBegin();
  // Tells the server something, and returns what it answers.
  std::string Ask(const std::string& words);
  // Tells the server something that ends it; no answer follows.
  void Tell(const std::string& words) const;
  // Waits until the keeper logs a line with that text, and returns it. Discards earlier lines.
  std::string AwaitLog(const std::string& text);

  // Pid of the server that has begun last.
  pid_t server_pid() const { return server_pid_; }
  // Waits until that process has ended.
  bool AwaitServerEnd() const;
  // Descriptors of the server's last answer.
  wire::FileDescriptor TakeDescriptor() { return std::move(descriptor_); }

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // The keeper's exit code, or 128 + the signal that ended it.
  absl::StatusOr<int> AwaitExit();

 private:
  static constexpr absl::Duration kTimeout = absl::Seconds(30);

  const std::string program_;
  pid_t pid_ = -1;
  pid_t server_pid_ = -1;
  wire::FileDescriptor server_pidfd_;
  wire::FileDescriptor control_;          // the test's end
  wire::FileDescriptor servers_control_;  // the servers' end, which they inherit
  wire::FileDescriptor log_;
  wire::FileDescriptor descriptor_;
  std::string lines_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_KEEPER_KEEPER_PROCESS_H_
