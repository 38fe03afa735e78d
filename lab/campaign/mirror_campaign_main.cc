// ./dev mirror-campaign: a campaign against mirrors of built daemons, by hand.
#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <string>

#include "lab/campaign/mirror_campaign.h"
#include "tests/support/environment.h"

int main(int argc, char** argv) {
  paramshard::test::MirrorCampaignOptions options;
  options.daemon = paramshard::test::Program(PARAMSHARDD);
  options.ctl = paramshard::test::Program(PARAMSHARDCTL);
  options.wall_clock = paramshard::test::Program(WALL_CLOCK);
  int64_t seconds = 0;
  std::string json;
  CLI::App app("Disturbs mirrors, their training and the network between them, and checks what readers read.");
  app.add_option("--worlds", options.worlds, "Number of worlds")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--events", options.events, "Events in each world")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seconds", seconds, "Begin no event after this time; default: run all --worlds")
      ->check(CLI::PositiveNumber);
  app.add_option("--only", options.only, "Events to draw from; default: all")
      ->check(CLI::IsMember(paramshard::test::MirrorEventNames()))
      ->delimiter(',');
  app.add_option("--seed", options.seed, "Seed of all worlds")->capture_default_str();
  app.add_option("--first-world", options.first_world, "Number of the first world; repeats a failed world")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--logs", options.logs, "Folder that keeps the daemons' logs of a failed world")
      ->check(CLI::ExistingDirectory);
  app.add_flag("--tell", options.tells, "Print events with their times to standard error");
  app.add_option("--json", json, "File for the result, as JSON");
  CLI11_PARSE(app, argc, argv);
  if (seconds > 0) options.time = absl::Seconds(seconds);
  const paramshard::test::MirrorCampaignResult result = paramshard::test::RunMirrorCampaign(options);
  std::cout << result.Table();
  if (!json.empty()) std::ofstream(json) << result.Json();
  return result.status.ok() ? 0 : 1;
}
