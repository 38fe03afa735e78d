// ./dev reader-campaign: a campaign of readers against built daemons, by hand.
#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <string>

#include "lab/campaign/reader_campaign.h"
#include "tests/support/environment.h"

int main(int argc, char** argv) {
  paramshard::test::ReaderCampaignOptions options;
  options.daemon = paramshard::test::Program(PARAMSHARDD);
  options.ctl = paramshard::test::Program(PARAMSHARDCTL);
  int64_t seconds = 0;
  int64_t hold_ms = absl::ToInt64Milliseconds(options.reader_hold);
  std::string json;
  CLI::App app("Reads a training's weights with many readers, kills them and the server, and checks every value.");
  app.add_option("--rounds", options.rounds, "Number of rounds")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--commits", options.commits, "Commits of each round's training")
      ->check(CLI::Range(24, 1'000'000))
      ->capture_default_str();
  app.add_option("--kills", options.kills, "Kills of the server in each round; fewer than a fourth of the commits")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--verifiers", options.verifiers, "Readers that verify all the time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--reader-hold-ms", hold_ms, "--reader-hold of the daemon")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--seconds", seconds, "Start no round after this time; default: run all --rounds")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "Seed of all rounds")->capture_default_str();
  app.add_option("--first-round", options.first_round, "Number of the first round; repeats a failed round")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--tell", options.tells, "Print what happens with its time to standard error");
  app.add_option("--json", json, "File for the result, as JSON");
  CLI11_PARSE(app, argc, argv);
  options.reader_hold = absl::Milliseconds(hold_ms);
  if (seconds > 0) options.time = absl::Seconds(seconds);
  const paramshard::test::ReaderCampaignResult result = paramshard::test::RunReaderCampaign(options);
  std::cout << result.Table();
  if (!json.empty()) std::ofstream(json) << result.Json();
  return result.status.ok() ? 0 : 1;
}
