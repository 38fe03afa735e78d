// A training on this machine with mirrors, each with a reader beside it. Weights are known at every commit, so that a
// reader tells whether each byte is the commit's that it was given.
#ifndef PARAMSHARD_TESTS_FAULTS_MIRRORED_TRAINING_H_
#define PARAMSHARD_TESTS_FAULTS_MIRRORED_TRAINING_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/reader.h"
#include "nlohmann/json.hpp"
#include "tests/support/daemon_process.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_authority.h"

namespace paramshard::test {

// Longest wait for anything that a mirror does.
inline constexpr absl::Duration kMirrorTimeout = absl::Seconds(60);

// The model "m". Its planes have some 300 KB, and `large_rows` * 8 KiB more.
ModelSpec KnownModel(int ranks, int64_t large_rows = 0);

// Daemons of one rank each, which share the model, and their trainers on threads.
class MirroredTraining {
 public:
  struct Options {
    int nodes = 1;  // at most as many as there are GPUs, where tests run on GPUs
    std::vector<std::string> flags = {};
    const Certificates* certificates = nullptr;  // null: --insecure=on
    int64_t large_rows = 0;                      // of the model
  };
  explicit MirroredTraining(Options options);
  explicit MirroredTraining(int nodes) : MirroredTraining(Options{.nodes = nodes}) {}
  ~MirroredTraining();

  absl::Status AwaitReady();
  // Trains until `commits`, or until the end of this object, across servers that die.
  void Train(int64_t commits);
  void Join();
  // Train, Join.
  void TrainTo(int64_t commits);
  int nodes() const { return options_.nodes; }
  int64_t commit() const { return commit_; }
  // Longest time of a step of rank 0, from its first gradient to the answer.
  absl::Duration longest_step() const { return absl::Microseconds(longest_step_us_.load()); }

  const std::string& sockets(int node) const { return sockets_[node].path(); }
  int port(int node) const { return ports_[node]; }  // of --listen

 private:
  DaemonProcess Spawn(int node);
  absl::Status TrainRank(int rank, int64_t commits);
  absl::Status TrainEpoch(int rank, int64_t commits);

  const Options options_;
  std::string cluster_address_;
  std::vector<TemporaryDirectory> sockets_;
  std::vector<int> ports_;
  std::vector<DaemonProcess> daemons_;
  std::atomic<int64_t> commit_ = 0;
  std::atomic<int64_t> longest_step_us_ = 0;
  std::atomic<bool> stopped_ = false;
  std::vector<std::thread> trainers_;
};

// A mirror without a keeper, and the reader beside it.
class ReadMirror {
 public:
  explicit ReadMirror(const MirroredTraining& training, std::vector<std::string> flags = {})
      : ReadMirror(training.port(0), std::move(flags)) {}
  // `port`: of node 0, or of a relay before it. `log`: a file; empty: standard error.
  explicit ReadMirror(int port, std::vector<std::string> flags = {}, const std::string& log = "");

  void Start();
  DaemonProcess& daemon() { return *daemon_; }
  const std::string& sockets() const { return sockets_.path(); }

  // Waits for a version of at least that commit, reads all of it, and returns its commit number. INTERNAL a value is
  // not that commit's.
  absl::StatusOr<int64_t> Read(int64_t least_commit);
  // Returns what `paramshardctl mirror list` says of the model.
  absl::StatusOr<nlohmann::json> Listed() const;
  // Waits until the mirror has staged a version of at least that commit. Returns its commit number.
  absl::StatusOr<int64_t> AwaitStaged(int64_t least_commit) const;
  // Waits until the last error contains the text, and returns it.
  absl::StatusOr<std::string> AwaitError(const std::string& text) const;

 private:
  const TemporaryDirectory sockets_;
  std::vector<std::string> flags_;
  const std::string log_;
  const std::unique_ptr<Reader> reader_;
  std::optional<DaemonProcess> daemon_;
};

// Exit code and output of a command, with its standard error.
struct Ended {
  int code = 0;
  std::string output;
};
Ended RunCommand(const std::string& command);

// Runs paramshardctl with flags that say which daemon, or with the socket directory.
Ended RunCtl(const std::vector<std::string>& flags, const std::string& words);
absl::StatusOr<nlohmann::json> Ctl(const std::string& sockets, const std::string& words);

// Returns the server's process of a daemon.
absl::StatusOr<pid_t> ServerOf(const std::string& sockets);

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_FAULTS_MIRRORED_TRAINING_H_
