// The demonstration: train, kill a trainer in mid-step, train on, and compare every master and
// moment.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_DEMO_H_
#define PARAMSHARD_CLIENT_EXAMPLES_DEMO_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/examples/demo_world.h"
#include "nlohmann/json.hpp"

namespace paramshard::examples {

// Prints to standard output as it goes; leaves logs, the trainers' reports and report.json in the
// output directory.
class Demo {
 public:
  explicit Demo(DemoOptions options) : options_(std::move(options)) {}

  // An error when anything fails, when accuracy is too low, or when the two trainings end in
  // different states.
  absl::Status Run();

 private:
  struct Training {
    nlohmann::json last_progress;  // rank 0's last "progress" event
    std::string state_hash;
    std::vector<nlohmann::json> events;  // of rank 0
  };

  absl::Status CheckOptions() const;
  absl::Status ClearOutput() const;
  int victim() const { return options_.world_size > 1 ? 1 : 0; }
  // A step in the middle of the training, and of an epoch.
  int64_t KillStep() const;

  absl::StatusOr<Training> TrainUninterrupted(DemoWorld& world);
  absl::StatusOr<Training> TrainInterrupted(DemoWorld& world);
  absl::StatusOr<std::vector<ChildProcess>> StartTrainers(DemoWorld& world, const std::string& model,
                                                          std::optional<int64_t> kill_step);
  // Is called by Follow, which otherwise only watches.
  struct Hooks {
    // Is called after the first epoch.
    std::function<absl::Status()> on_first_progress;
    // Is called when a trainer has ended, but not well. The training goes on if it returns OK.
    std::function<absl::Status(int rank, const ExitState& exit)> on_failure;
  };
  // Follows a training to its end, printing its epochs.
  absl::StatusOr<Training> Follow(DemoWorld& world, const std::string& model, std::vector<ChildProcess>& trainers,
                                  const Hooks& hooks);

  absl::Status PrintTables(DemoWorld& world, const std::string& model);
  // Seconds from the victim's kill to the next commit that was answered.
  absl::StatusOr<double> RecoverySeconds(DemoWorld& world, const Training& interrupted) const;
  absl::Status WriteReport(const Training& uninterrupted, const Training& interrupted, double recovery_seconds) const;
  absl::Status Conclude(const Training& uninterrupted, const Training& interrupted, double recovery_seconds) const;

  DemoOptions options_;
};

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_DEMO_H_
