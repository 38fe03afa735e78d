// The demonstration: train; kill a trainer in mid-step, train on, and compare every master and moment; kill the server
// in mid-step and then at random times, train on, and compare again; restore the saved model into a world of another
// size, and compare once more.
#ifndef PARAMSHARD_CLIENT_DEMO_DEMO_H_
#define PARAMSHARD_CLIENT_DEMO_DEMO_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/demo/demo_world.h"
#include "nlohmann/json.hpp"

namespace paramshard::demo {

// Prints its progress to standard output; leaves logs, the trainers' reports and report.json in the output directory.
class Demo {
 public:
  explicit Demo(DemoOptions options) : options_(std::move(options)) {}

  // Returns an error if anything fails, accuracy is too low, trainings end in different states, or the restored state
  // is not the saved one. The server is killed only in worlds of one daemon.
  absl::Status Run();

 private:
  struct Training {
    nlohmann::json last_progress;  // rank 0's last "progress" event
    std::string state_hash;
    std::vector<nlohmann::json> events;  // of rank 0
  };
  // Result of the training whose server is killed, and of its saves.
  struct Comeback {
    Training training;
    int kills = 0;  // in mid-step, and at random times
    uint64_t kill_seed = 0;
    int64_t finished_steps = 0;           // steps that a killed server began and the next one finished
    double recovery_seconds = 0;          // from the kill in mid-step to the next answered commit
    double longest_recovery_seconds = 0;  // over all kills
    double save_stall_seconds = 0;
    DemoWorld::SavedStep saved;  // after the last commit
    int restored_world_size = 0;
    bool restored_state_equal = false;
  };
  // Results of a whole run.
  struct Results {
    Training uninterrupted;
    Training interrupted;
    double recovery_seconds = 0;
    std::optional<Comeback> comeback;
  };

  absl::Status CheckOptions() const;
  absl::Status ClearOutput() const;
  int victim() const { return options_.world_size > 1 ? 1 : 0; }
  // Returns a step in the middle of the training, and of an epoch.
  int64_t KillStep() const;

  absl::StatusOr<Training> TrainUninterrupted(DemoWorld& world);
  absl::StatusOr<Training> TrainInterrupted(DemoWorld& world);
  absl::StatusOr<Comeback> TrainThroughServersDeaths(DemoWorld& world);
  // Returns the world that the saved model is restored into.
  DemoOptions OtherWorld() const;
  // Restores the saved model in another world, saves it again, and compares the bytes.
  absl::Status RestoreElsewhere(Comeback& comeback);
  // `victims_flags` go to the victim only.
  absl::StatusOr<std::vector<ChildProcess>> StartTrainers(DemoWorld& world, const std::string& model,
                                                          const std::vector<std::string>& victims_flags);
  // Callbacks of Follow().
  struct Hooks {
    // Called after the first epoch.
    std::function<absl::Status()> on_first_progress;
    // Called when a trainer has failed. The training goes on if it returns OK.
    std::function<absl::Status(int rank, const ExitState& exit)> on_failure;
    // Called every few milliseconds.
    std::function<absl::Status()> on_poll = [] { return absl::OkStatus(); };
  };
  // Follows a training to its end, printing its epochs.
  absl::StatusOr<Training> Follow(DemoWorld& world, const std::string& model, std::vector<ChildProcess>& trainers,
                                  const Hooks& hooks);

  absl::Status PrintTables(DemoWorld& world, const std::string& model);
  // Fills in the seconds from each kill of the server to the next answered commit.
  absl::Status MeasureRecoveries(const std::vector<double>& kills, Comeback& comeback) const;
  // Returns the seconds from the victim's kill to the next answered commit.
  absl::StatusOr<double> RecoverySeconds(DemoWorld& world, const Training& interrupted) const;
  absl::Status WriteReport(const Results& results) const;
  absl::Status Conclude(const Results& results) const;
  absl::Status ConcludeComeback(const Results& results) const;

  DemoOptions options_;
};

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_DEMO_H_
