// The world of a campaign: a daemon, models for its rounds, and a bystander, a model that no round touches.
#ifndef PARAMSHARD_LAB_CAMPAIGN_WORLD_H_
#define PARAMSHARD_LAB_CAMPAIGN_WORLD_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lab/campaign/campaign.h"
#include "nlohmann/json_fwd.hpp"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/stepped_clock.h"

namespace paramshard::test {

// Commits of every training.
inline constexpr int64_t kCommits = 6;
// Longest time that any recovery may take.
inline constexpr absl::Duration kTimeout = absl::Minutes(2);

// Returns the state's hash from the JSON that `verify` prints. INTERNAL if there is none, or the state has no rows: its
// hash would equal the hash of any other empty state.
absl::StatusOr<std::string> StateHashOf(const nlohmann::json& verified);

// The daemon runs until the world ends, or a fault kills it. Not thread-safe; forked processes may use all const
// functions.
class World {
 public:
  // Starts the daemon, and trains the bystander.
  static absl::StatusOr<World> Start(const CampaignOptions& options);

  const CampaignOptions& options() const { return options_; }
  DaemonProcess& daemon() { return daemon_; }
  const std::string& socket_dir() const { return directory_.path(); }
  // State's hash of the bystander, and so of every model that has been trained to its end.
  const std::string& state_hash() const { return state_hash_; }
  // Longest time that one rank may keep the other waiting.
  absl::Duration step_timeout() const { return step_timeout_; }
  // Time from the start of a trainer's process to its first step.
  absl::Duration start_time() const { return start_time_; }
  Training TrainingOf(const std::string& model, int rank) const {
    return {.socket_dir = socket_dir(), .model = model, .rank = rank, .commits = kCommits};
  }
  void StepWallClock(absl::Duration by) { clock_.Step(by); }

  // The hash of masters and moments; planes must match them.
  absl::StatusOr<std::string> StateHash(const std::string& model) const;
  // Waits for the end of a trainer. The error for a trainer that hangs quotes the daemon's view of it.
  absl::Status AwaitEnd(ChildProcess& trainer) const;
  absl::Status CheckAlive();
  // Everything that must hold between rounds: the daemon lives and deletes the models that were fought over, the
  // bystander has its bytes, and the daemon holds as much as `before`.
  absl::Status Check(const std::vector<std::string>& models, const Holdings& before);
  absl::StatusOr<Holdings> Count() const;
  int64_t Descriptors() const { return Entries("fd"); }

 private:
  World(const CampaignOptions& options, TemporaryDirectory directory, SteppedClock clock, DaemonProcess daemon);

  // Trains both ranks to the end; how long it took until both had begun.
  absl::StatusOr<absl::Duration> Train(const std::string& model) const;
  absl::Status Delete(const std::vector<std::string>& models) const;
  int64_t Entries(const char* folder) const;
  absl::StatusOr<nlohmann::json> Ctl(const std::string& arguments) const;
  absl::Status AwaitLevel(const Holdings& before) const;

  CampaignOptions options_;
  std::string ctl_;
  bool on_gpus_;
  absl::Duration step_timeout_;
  absl::Duration start_time_;
  TemporaryDirectory directory_;
  SteppedClock clock_;
  DaemonProcess daemon_;
  std::string state_hash_;
};

// A trainer that tells how far it has come, by the board's number kReachedCommit.
inline constexpr int kReachedCommit = 0;
ChildProcess StartTelling(Training training);

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_WORLD_H_
