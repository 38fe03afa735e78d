// The demonstration: train; kill a trainer in mid-step, train on, and compare every master and moment; kill the server
// in mid-step and then at random times, train on, compare again; restore what was saved into a world of another size,
// and compare once more.
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

  // An error when anything fails, when accuracy is too low, when trainings end in different states, or when what was
  // restored is not what was saved. The server is killed where there is one daemon.
  absl::Status Run();

 private:
  struct Training {
    nlohmann::json last_progress;  // rank 0's last "progress" event
    std::string state_hash;
    std::vector<nlohmann::json> events;  // of rank 0
  };
  // What came of the deaths of the server, and of its saves.
  struct Comeback {
    Training training;
    int kills = 0;  // the one in mid-step, and those at random times
    uint64_t kill_seed = 0;
    int64_t finished_steps = 0;           // that were cut off with a server, and finished by the next one
    double recovery_seconds = 0;          // from the kill in mid-step to the next commit that was answered
    double longest_recovery_seconds = 0;  // of all kills
    double save_stall_seconds = 0;
    DemoWorld::SavedStep saved;  // after the last commit
    int restored_world_size = 0;
    bool restored_state_equal = false;
  };
  // What a whole run has shown.
  struct Results {
    Training uninterrupted;
    Training interrupted;
    double recovery_seconds = 0;
    std::optional<Comeback> comeback;
  };

  absl::Status CheckOptions() const;
  absl::Status ClearOutput() const;
  int victim() const { return options_.world_size > 1 ? 1 : 0; }
  // A step in the middle of the training, and of an epoch.
  int64_t KillStep() const;

  absl::StatusOr<Training> TrainUninterrupted(DemoWorld& world);
  absl::StatusOr<Training> TrainInterrupted(DemoWorld& world);
  absl::StatusOr<Comeback> TrainThroughServersDeaths(DemoWorld& world);
  // The world that a saved model is restored into.
  DemoOptions OtherWorld() const;
  // Has another world restore what was saved, and save it again: whether the bytes are the same.
  absl::Status RestoreElsewhere(Comeback& comeback);
  // The victim has the flag, if any.
  absl::StatusOr<std::vector<ChildProcess>> StartTrainers(DemoWorld& world, const std::string& model,
                                                          const std::vector<std::string>& victims_flags);
  // Is called by Follow, which otherwise only watches.
  struct Hooks {
    // Is called after the first epoch.
    std::function<absl::Status()> on_first_progress;
    // Is called when a trainer has ended, but not well. The training goes on if it returns OK.
    std::function<absl::Status(int rank, const ExitState& exit)> on_failure;
    // Is called every few milliseconds.
    std::function<absl::Status()> on_poll = [] { return absl::OkStatus(); };
  };
  // Follows a training to its end, printing its epochs.
  absl::StatusOr<Training> Follow(DemoWorld& world, const std::string& model, std::vector<ChildProcess>& trainers,
                                  const Hooks& hooks);

  absl::Status PrintTables(DemoWorld& world, const std::string& model);
  // Fills in the seconds from each kill of the server to the next commit that was answered.
  absl::Status MeasureRecoveries(const std::vector<double>& kills, Comeback& comeback) const;
  // Seconds from the victim's kill to the next commit that was answered.
  absl::StatusOr<double> RecoverySeconds(DemoWorld& world, const Training& interrupted) const;
  absl::Status WriteReport(const Results& results) const;
  absl::Status Conclude(const Results& results) const;
  absl::Status ConcludeComeback(const Results& results) const;

  DemoOptions options_;
};

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_DEMO_H_
