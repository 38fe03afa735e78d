// paramshard-digits: one rank of the digits training.
#include <CLI/CLI.hpp>
#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/examples/digits_trainer.h"
#include "client/examples/training_report.h"
#include "kernels/base/status_macros.h"

namespace paramshard::examples {
namespace {

struct Flags {
  DigitsOptions options;
  std::string format = "MXFP8";
  std::string report;
  int world_size = 0;
  double attach_timeout_seconds = 60;
};

void AddFlags(CLI::App& app, Flags& flags) {
  DigitsOptions& options = flags.options;
  app.add_option("--socket-dir", options.client.socket_dir, "The daemon's directory of sockets");
  app.add_option("--rank", options.client.rank, "Rank of the world that this trainer serves")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--world-size", flags.world_size, "Ranks expected; 0: whatever the daemon has")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--model", options.model, "Name of the model")->capture_default_str();
  app.add_option("--format", flags.format, "Format of the weights")->capture_default_str();
  app.add_option("--shard-size", options.shard_size, "Ranks that share one copy of the model");
  app.add_option("--epochs", options.epochs, "Passes over the data")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Samples of all ranks in a step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "Of the first step")->capture_default_str();
  app.add_option("--seed", options.seed, "Of initial weights and of the order of samples")->capture_default_str();
  app.add_option("--attach-timeout", flags.attach_timeout_seconds, "Seconds to wait for the other ranks")
      ->capture_default_str();
  app.add_option("--report", flags.report, "Append events to this file, as JSON lines");
  app.add_option("--kill-at-step", options.kill_at_step, "Die by SIGKILL in the middle of this step");
}

absl::Status CheckFlags(Flags& flags) {
  ASSIGN_OR_RETURN(flags.options.format, ParseFormat(flags.format));
  if (flags.world_size != 0 && flags.options.client.rank >= flags.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank: a rank below ", flags.world_size, " expected, got ", flags.options.client.rank));
  }
  flags.options.client.attach_timeout = absl::Seconds(flags.attach_timeout_seconds);
  return absl::OkStatus();
}

absl::Status Run(Flags& flags) {
  RETURN_IF_ERROR(CheckFlags(flags));
  ASSIGN_OR_RETURN(TrainingReport report, TrainingReport::Open(flags.report));
  ASSIGN_OR_RETURN(DigitsTrainer trainer, DigitsTrainer::Create(flags.options, &report));
  return trainer.Run();
}

}  // namespace
}  // namespace paramshard::examples

int main(int argc, char** argv) {
  CLI::App app("Trains a perceptron on handwritten digits, with its weights in a paramshard daemon.");
  paramshard::examples::Flags flags;
  paramshard::examples::AddFlags(app, flags);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = paramshard::examples::Run(flags);
  if (status.ok()) return 0;
  std::cerr << "paramshard-digits: " << status << std::endl;
  return 1;
}
