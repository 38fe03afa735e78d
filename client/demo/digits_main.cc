// paramshard-digits: one rank of the digits training.
#include <CLI/CLI.hpp>
#include <iostream>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/terminal_text.h"
#include "client/demo/storage.h"
#include "client/demo/trainer.h"
#include "client/demo/training_report.h"
#include "kernels/base/status_macros.h"

namespace paramshard::demo {
namespace {

struct Flags {
  TrainerOptions options = {};
  StorageFlags storage = {};
  std::string gradient_reduction = "sum";
  std::string report = {};
  double attach_timeout_seconds = 60;
};

void AddFlags(CLI::App& app, Flags& flags) {
  TrainerOptions& options = flags.options;
  app.add_option("--socket-dir", options.client.socket_dir, "Socket directory of the daemon");
  app.add_option("--rank", options.client.rank, "Rank of this trainer in the world")->check(CLI::NonNegativeNumber);
  app.add_option("--world-size", options.world_size, "Number of ranks that the daemon's world must have; default: any")
      ->check(CLI::PositiveNumber);
  app.add_option("--model", options.model, "Name of the model")->capture_default_str();
  AddStorageFlags(app, flags.storage);
  app.add_option("--shard-size", options.shard_size, "Ranks that share one copy of the model");
  app.add_option("--gradient-reduction", flags.gradient_reduction,
                 "Reduction of the ranks' gradients: sum or mean; mean is required to continue with fewer replicas")
      ->check(CLI::IsMember({"sum", "mean"}))
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "Passes over the data")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--steps", options.steps, "Steps to train; default: all steps of the epochs")
      ->check(CLI::PositiveNumber);
  app.add_option("--batch-size", options.batch_size, "Samples per step, over all ranks")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--report-interval", options.report_interval, "Steps between two reports; default: an epoch")
      ->check(CLI::PositiveNumber);
  app.add_option("--learning-rate", options.learning_rate, "Learning rate of the first step")->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of initial weights and of the order of samples")->capture_default_str();
  app.add_option("--attach-timeout", flags.attach_timeout_seconds, "Seconds to wait for the other ranks")
      ->capture_default_str();
  app.add_option("--report", flags.report, "Append events to this file, as JSON lines");
  app.add_option("--start-step", options.start_step, "First step for an imported model; default: its number of commits")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--kill-at-step", options.kill_at_step, "Kill this process with SIGKILL in the middle of this step");
  app.add_option("--hold-at-step", options.hold_at_step,
                 "Wait in the middle of this step until the epoch ends, for example because the server is killed");
}

absl::Status CheckFlags(Flags& flags) {
  ASSIGN_OR_RETURN(flags.options.storage, ParseStorage(flags.storage));
  if (flags.gradient_reduction == "mean") flags.options.gradient_reduction = GradientReduction::kMean;
  const std::optional<int> world_size = flags.options.world_size;
  if (world_size.has_value() && flags.options.client.rank >= *world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank: want a rank below ", *world_size, ", got ", flags.options.client.rank));
  }
  flags.options.client.attach_timeout = absl::Seconds(flags.attach_timeout_seconds);
  return absl::OkStatus();
}

absl::Status Run(Flags& flags) {
  RETURN_IF_ERROR(CheckFlags(flags));
  ASSIGN_OR_RETURN(TrainingReport report, TrainingReport::Open(flags.report));
  ASSIGN_OR_RETURN(Trainer trainer, Trainer::Create(flags.options, &report));
  return trainer.Run();
}

}  // namespace
}  // namespace paramshard::demo

int main(int argc, char** argv) {
  using namespace paramshard::demo;
  CLI::App app("Trains a perceptron on handwritten digits, with its weights in a paramshard daemon.");
  Flags flags;
  AddFlags(app, flags);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = Run(flags);
  if (status.ok()) return 0;
  std::cerr << "paramshard-digits: " << paramshard::ctl::TerminalText(status.ToString()) << std::endl;
  return 1;
}
