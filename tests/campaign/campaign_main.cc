// ./dev campaign: a campaign against the built daemon, by hand.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <fstream>
#include <iostream>
#include <map>
#include <string>

#include "tests/campaign/campaign.h"
#include "tests/support/environment.h"

int main(int argc, char** argv) {
  using paramshard::test::AssaultNames;
  paramshard::test::CampaignOptions options;
  options.daemon = paramshard::test::Program(PARAMSHARDD);
  options.ctl = paramshard::test::Program(PARAMSHARDCTL);
  options.wall_clock = paramshard::test::Program(WALL_CLOCK);
  int64_t seconds = 0;
  std::string json;
  CLI::App app("Mistreats a daemon in rounds, and looks after each whether it still is what it was.");
  app.add_option("--rounds", options.rounds, "How many")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seconds", seconds, "No round begins later; default: as many rounds as --rounds says")
      ->check(CLI::PositiveNumber);
  app.add_option("--only", options.assaults, "These assaults in turn; default: all")
      ->check(CLI::IsMember(AssaultNames()))
      ->delimiter(',');
  app.add_option("--device", options.devices,
                 "The daemon's, two of one kind: cuda:0,cuda:1; one where only servers are killed")
      ->delimiter(',')
      ->expected(1, 2)
      ->capture_default_str();
  app.add_option("--at-once", options.at_once, "Rounds that run side by side, each on a model of its own")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--kills", options.kills, "In each round that kills; at most five have a step each, but for kill-any")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--nodes", options.nodes, "Daemons of a world of kill-any")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  app.add_option("--node-devices", options.node_devices, "cpu devices of each of them")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--rows-factor", options.rows_factor, "Of models whose server is killed: times the rows of others")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  int64_t server_us = absl::ToInt64Microseconds(options.server_kill_within);
  int64_t decided_us = absl::ToInt64Microseconds(options.decided_kill_within);
  app.add_option("--server-kill-us", server_us, "Servers are killed so long after a step began at the latest")
      ->capture_default_str();
  app.add_option("--decided-kill-us", decided_us, "Or so long after its commit was decided")->capture_default_str();
  const std::map<std::string, int> signals = {{"kill", SIGKILL}, {"segv", SIGSEGV}};
  app.add_option("--server-signals", options.server_signals, "What ends servers, drawn for each: kill, segv")
      ->transform(CLI::CheckedTransformer(signals))
      ->delimiter(',');
  app.add_option("--seed", options.seed, "Of all rounds")->capture_default_str();
  app.add_option("--first-round", options.first_round, "To repeat a round that failed")->check(CLI::NonNegativeNumber);
  app.add_option("--logs", options.logs, "Keep the logs of kill-any's daemons where something failed in this folder")
      ->check(CLI::ExistingDirectory);
  app.add_flag("--tell", options.tells, "Say on standard error what happens, when");
  app.add_option("--json", json, "Write the result to this file too");
  CLI11_PARSE(app, argc, argv);
  const std::vector<std::string> assaults = options.assaults.empty() ? AssaultNames() : options.assaults;
  if (options.devices.size() < 2 && !std::all_of(assaults.begin(), assaults.end(), paramshard::test::NeedsOneRank)) {
    std::cerr << "--device: two expected but for --only kill-server,kill-decided,kill-any\n";
    return 2;
  }
  options.server_kill_within = absl::Microseconds(server_us);
  options.decided_kill_within = absl::Microseconds(decided_us);
  if (seconds > 0) options.time = absl::Seconds(seconds);
  const paramshard::test::CampaignResult result = paramshard::test::RunCampaign(options);
  std::cout << result.Table();
  if (!json.empty()) std::ofstream(json) << result.Json();
  return result.status.ok() ? 0 : 1;
}
