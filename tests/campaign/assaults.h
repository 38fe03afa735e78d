// What rounds of a campaign do to the daemon, and to the model that they fight over.
#ifndef PARAMSHARD_TESTS_CAMPAIGN_ASSAULTS_H_
#define PARAMSHARD_TESTS_CAMPAIGN_ASSAULTS_H_

#include <cstdint>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tests/campaign/campaign.h"
#include "tests/campaign/world.h"

namespace paramshard::test {

struct Round {
  World& world;
  std::string model;       // nobody else's
  std::mt19937_64 random;  // from which everything is drawn
  int64_t kills;           // of a round that kills
  int64_t number;
  CampaignResult::Count count = {};

  Training TrainingOf(int rank) const { return world.TrainingOf(model, rank); }
};

struct Assault {
  absl::string_view name;
  // Not OK where something does not hold that this assault alone knows of.
  absl::Status (*run)(Round& round);
  // It does something to the daemon that no other training may meet.
  bool alone = false;
  int ranks = 2;  // at least, of each training
};

// campaign.h says what each does.
absl::Span<const Assault> Assaults();
const Assault* FindAssault(const std::string& name);

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_CAMPAIGN_ASSAULTS_H_
