// ./dev network-campaign: a campaign against worlds of built daemons, by hand.
#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <string>

#include "tests/net/network_campaign.h"
#include "tests/support/environment.h"

int main(int argc, char** argv) {
  paramshard::test::NetworkCampaignOptions options;
  options.daemon = paramshard::test::Program(PARAMSHARDD);
  options.ctl = paramshard::test::Program(PARAMSHARDCTL);
  options.wall_clock = paramshard::test::Program(WALL_CLOCK);
  int64_t seconds = 0;
  std::string json;
  CLI::App app("Mistreats worlds of daemons and the network between them, and looks whether they train as before.");
  app.add_option("--worlds", options.worlds, "How many")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--events", options.events, "In each world")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--most-nodes", options.most_nodes, "In a world")->check(CLI::Range(2, 8))->capture_default_str();
  app.add_option("--seconds", seconds, "No world begins later; default: as many worlds as --worlds says")
      ->check(CLI::PositiveNumber);
  app.add_option("--device", options.devices, "Of the daemons, in turn: cuda:0,cuda:1")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--only", options.only, "These events; default: all")
      ->check(CLI::IsMember(paramshard::test::NetworkEventNames()))
      ->delimiter(',');
  app.add_option("--at-once", options.at_once, "Worlds that run side by side")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of all worlds")->capture_default_str();
  app.add_option("--first-world", options.first_world, "To repeat a world that failed")->check(CLI::NonNegativeNumber);
  app.add_option("--logs", options.logs, "Keep the daemons' logs of worlds that failed in this folder")
      ->check(CLI::ExistingDirectory);
  app.add_flag("--tell", options.tells, "Say on standard error what happens, when");
  app.add_option("--json", json, "Write the result to this file too");
  CLI11_PARSE(app, argc, argv);
  if (seconds > 0) options.time = absl::Seconds(seconds);
  const paramshard::test::NetworkCampaignResult result = paramshard::test::RunNetworkCampaign(options);
  std::cout << result.Table();
  if (!json.empty()) std::ofstream(json) << result.Json();
  return result.status.ok() ? 0 : 1;
}
