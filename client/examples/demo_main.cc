// paramshard-demo: see demo.h.
#include <CLI/CLI.hpp>
#include <iostream>

#include "client/examples/demo.h"

int main(int argc, char** argv) {
  CLI::App app(
      "Trains on handwritten digits, kills a trainer and then the server in mid-step and at random times, and shows "
      "that training goes on bit for bit.");
  paramshard::examples::DemoOptions options;
  app.add_option("--bin-dir", options.bin_dir, "Where paramshardd, paramshardctl and paramshard-digits are")
      ->required();
  app.add_option("--out", options.out_dir, "Where report.json, logs and reports go")->required();
  paramshard::examples::AddStorageFlags(app, options.storage);
  app.add_option("--device", options.device, "What the daemons serve from: cpu or cuda, a GPU for each rank")
      ->capture_default_str();
  app.add_option("--world-size", options.world_size, "Trainers, and devices")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--nodes", options.nodes, "Daemons")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--shard-size", options.shard_size,
                 "Ranks that share one copy of the model; default: the devices of one daemon");
  app.add_option("--epochs", options.epochs, "Passes over the data")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--kill-seed", options.kill_seed, "Of the random times at which the server is killed");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = paramshard::examples::Demo(options).Run();
  if (status.ok()) return 0;
  std::cout.flush();
  std::cerr << "paramshard-demo: " << status << std::endl;
  return 1;
}
