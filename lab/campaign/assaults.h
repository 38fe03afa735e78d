// Assaults: the rounds of a campaign, on the daemon and on a model of their own.
#ifndef PARAMSHARD_LAB_CAMPAIGN_ASSAULTS_H_
#define PARAMSHARD_LAB_CAMPAIGN_ASSAULTS_H_

#include <cstdint>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lab/campaign/campaign.h"
#include "lab/campaign/world.h"

namespace paramshard::test {

struct Round {
  World& world;
  std::string model;       // used by this round only
  std::mt19937_64 random;  // source of all random choices
  int64_t kills;           // in a round that kills
  int64_t number;
  CampaignResult::Count count = {};

  Training TrainingOf(int rank) const { return world.TrainingOf(model, rank); }
};

struct Assault {
  absl::string_view name;
  // Returns an error if an invariant of this assault does not hold.
  absl::Status (*run)(Round& round);
  // True if no other training may run at the same time.
  bool alone = false;
  int ranks = 2;  // least number of ranks of each training
};

// See campaign.h for a description of each.
absl::Span<const Assault> Assaults();
const Assault* FindAssault(const std::string& name);

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_ASSAULTS_H_
