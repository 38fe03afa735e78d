// The daemons of the demo, and the trainers that it starts against them.
#ifndef PARAMSHARD_CLIENT_DEMO_DEMO_WORLD_H_
#define PARAMSHARD_CLIENT_DEMO_DEMO_WORLD_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/demo/child_process.h"
#include "client/demo/storage.h"
#include "nlohmann/json.hpp"

namespace paramshard::demo {

struct DemoOptions {
  std::string bin_dir = {};
  std::string out_dir = {};
  StorageFlags storage = {};
  int world_size = 2;
  int nodes = 1;
  std::string device = "cpu";  // kind of every rank's device: cpu or cuda
  std::optional<int> shard_size = {};
  int64_t epochs = 20;
  // Seed of the random times of the server's kills. Unset: a random seed.
  std::optional<uint64_t> kill_seed = {};
  // For worlds of one daemon: the directory that it saves into and restores from, and the commits between two saves.
  // Empty: no saves.
  std::string save_dir = {};
  int64_t save_every = 1;
  // Prefix of the names of logs and reports.
  std::string run_name = {};
};

// The demo's own folder under its output: logs of daemons and trainers, and the trainers' reports.
inline std::string RunDir(const std::string& out_dir) { return out_dir + "/demo-logs"; }
// The daemons' checkpoints, in that folder.
inline std::string SaveDir(const std::string& out_dir) { return RunDir(out_dir) + "/saves"; }

// Returns the devices of one node's daemon, in the order of its ranks: "cpu:0", "cpu:1" on every node; "cuda:2",
// "cuda:3" on the second of two nodes, because daemons cannot share GPUs.
std::vector<std::string> DevicesOf(const DemoOptions& options, int node);

// Daemons of one world on this machine, world_size / nodes devices each.
class DemoWorld {
 public:
  // Starts the daemons and waits until they answer.
  static absl::StatusOr<DemoWorld> Start(const DemoOptions& options);
  DemoWorld(DemoWorld&&) = default;
  ~DemoWorld();

  // Starts the trainer of a rank with additional flags; it appends events to ReportFile(model, rank).
  absl::StatusOr<ChildProcess> StartTrainer(const std::string& model, int rank,
                                            const std::vector<std::string>& flags = {}) const;
  std::string ReportFile(const std::string& model, int rank) const;

  // Returns the output of paramshardctl on a node.
  absl::StatusOr<std::string> Control(int node, const std::vector<std::string>& arguments) const;
  // Verifies a model on every node. Returns the hashes of its masters and moments, joined in the order of nodes.
  absl::StatusOr<std::string> StateHash(const std::string& model) const;

  // Returns the process that serves on node 0. With a keeper it is a child of the process that was started.
  absl::StatusOr<pid_t> ServerPid() const;

  // Returns how many steps of a model were interrupted when a server of node 0 was killed and finished by the next
  // server, as its log says.
  int64_t FinishedSteps(const std::string& model) const;

  // One save of a model on node 0.
  struct SavedStep {
    std::string path;
    int64_t step = 0;
    int64_t size_bytes = 0;
  };
  // Saves the model after the saves in progress.
  absl::StatusOr<SavedStep> Save(const std::string& model) const;
  // Waits until this server has published a save of the model.
  absl::Status AwaitSaved(const std::string& model) const;
  // Returns the longest time that a step on this server has waited for the copy of a save.
  absl::StatusOr<double> SaveStallSeconds(const std::string& model) const;
  // Returns the content hashes of a checkpoint's tensors, which do not depend on the world, by key.
  absl::StatusOr<nlohmann::json> ContentHashes(const std::string& checkpoint) const;

  // Returns OK while every daemon runs.
  absl::Status CheckRunning();
  // Sends SIGTERM. Returns an error unless every daemon ends with exit code 0.
  absl::Status Stop();

 private:
  explicit DemoWorld(const DemoOptions& options) : options_(options) {}

  absl::Status MakeSocketDirectory();
  absl::Status StartDaemon(int node, int cluster_port);
  absl::Status AwaitReady(int node);
  std::string Program(const std::string& name) const;
  std::string LogFile(const std::string& name) const;
  std::string SocketDirectory(int node) const;
  absl::StatusOr<nlohmann::json> ControlJson(std::vector<std::string> arguments) const;
  int devices_per_node() const { return options_.world_size / options_.nodes; }

  DemoOptions options_;
  std::string socket_root_;
  std::vector<ChildProcess> daemons_;
};

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_DEMO_WORLD_H_
