// ./dev campaign: a campaign against the built daemon, by hand.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <fstream>
#include <iostream>
#include <map>
#include <string>

#include "lab/campaign/campaign.h"
#include "tests/support/environment.h"

int main(int argc, char** argv) {
  using paramshard::test::AssaultNames;
  paramshard::test::CampaignOptions options;
  options.daemon = paramshard::test::Program(PARAMSHARDD);
  options.ctl = paramshard::test::Program(PARAMSHARDCTL);
  options.wall_clock = paramshard::test::Program(WALL_CLOCK);
  int64_t seconds = 0;
  std::string json;
  CLI::App app("Runs rounds of assaults on a daemon, and checks after each round that the daemon is unharmed.");
  app.add_option("--rounds", options.rounds, "Number of rounds")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seconds", seconds, "Start no round after this time; default: run all --rounds")
      ->check(CLI::PositiveNumber);
  app.add_option("--only", options.assaults, "Assaults to run in turn; default: all")
      ->check(CLI::IsMember(AssaultNames()))
      ->delimiter(',');
  app.add_option("--device", options.devices,
                 "Two devices of one kind for the daemon: cuda:0,cuda:1; one is enough to kill only servers")
      ->delimiter(',')
      ->expected(1, 2)
      ->capture_default_str();
  app.add_option("--at-once", options.at_once, "Rounds that run at the same time, each on a model of its own")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--kills", options.kills,
                 "Kills in each round that kills; at most five get a step each, except in kill-any")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--nodes", options.nodes, "Daemons in a world of kill-any")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  app.add_option("--node-devices", options.node_devices, "cpu devices of each daemon in kill-any")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--rows-factor", options.rows_factor, "Factor of the number of rows of models whose server is killed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  int64_t server_us = absl::ToInt64Microseconds(options.server_kill_within);
  int64_t decided_us = absl::ToInt64Microseconds(options.decided_kill_within);
  app.add_option("--server-kill-us", server_us, "Longest time from the beginning of a step to the kill of its server")
      ->capture_default_str();
  app.add_option("--decided-kill-us", decided_us,
                 "Longest time from the decision of a commit to the kill of its server")
      ->capture_default_str();
  const std::map<std::string, int> signals = {{"kill", SIGKILL}, {"segv", SIGSEGV}};
  app.add_option("--server-signals", options.server_signals,
                 "Signals that end servers, drawn for each kill: kill, segv")
      ->transform(CLI::CheckedTransformer(signals))
      ->delimiter(',');
  app.add_option("--seed", options.seed, "Seed of all rounds")->capture_default_str();
  app.add_option("--first-round", options.first_round, "Number of the first round; repeats a failed round")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--logs", options.logs, "Folder that keeps the daemons' logs of failed kill-any rounds")
      ->check(CLI::ExistingDirectory);
  app.add_flag("--tell", options.tells, "Print actions with their times to standard error");
  app.add_option("--json", json, "File for the result, as JSON");
  CLI11_PARSE(app, argc, argv);
  const std::vector<std::string> assaults = options.assaults.empty() ? AssaultNames() : options.assaults;
  if (options.devices.size() < 2 && !std::all_of(assaults.begin(), assaults.end(), paramshard::test::NeedsOneRank)) {
    std::cerr << "--device: want two devices, except for --only kill-server,kill-decided,kill-any\n";
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
