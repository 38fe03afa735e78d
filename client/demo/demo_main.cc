// paramshard-demo: see demo.h.
#include <CLI/CLI.hpp>
#include <iostream>

#include "client/demo/demo.h"

int main(int argc, char** argv) {
  CLI::App app(
      "Trains on handwritten digits, kills a trainer and then the server in mid-step and at random times, and shows "
      "that training goes on bit for bit.");
  paramshard::demo::DemoOptions options;
  app.add_option("--bin-dir", options.bin_dir, "Directory of paramshardd, paramshardctl and paramshard-digits")
      ->required();
  app.add_option("--out", options.out_dir, "Output directory for report.json, logs and reports")->required();
  paramshard::demo::AddStorageFlags(app, options.storage);
  app.add_option("--device", options.device, "Devices of the daemons: cpu, or cuda with a GPU for each rank")
      ->capture_default_str();
  app.add_option("--world-size", options.world_size, "Number of trainers and devices")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--nodes", options.nodes, "Number of daemons")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--shard-size", options.shard_size,
                 "Ranks that share one copy of the model; default: the devices of one daemon");
  app.add_option("--epochs", options.epochs, "Passes over the data")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--kill-seed", options.kill_seed,
                 "Seed of the random times of the server's kills; default: a random seed");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = paramshard::demo::Demo(options).Run();
  if (status.ok()) return 0;
  std::cout.flush();
  std::cerr << "paramshard-demo: " << status << std::endl;
  return 1;
}
