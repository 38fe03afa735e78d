// A world of many ranks, whose trainers, servers and daemons die while it trains.
#ifndef PARAMSHARD_LAB_CAMPAIGN_DYING_WORLD_H_
#define PARAMSHARD_LAB_CAMPAIGN_DYING_WORLD_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lab/campaign/campaign.h"
#include "lab/campaign/deaths.h"
#include "lab/campaign/kept_server.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::test {

// `nodes` daemons of `node_devices` devices each, as the options say, that hold a replica each or one shard group.
class DyingWorld {
 public:
  struct Spec {
    int64_t kills = 1;             // number of steps with deaths; a step without follows
    bool replicas = false;         // else shards
    bool keeps_decisions = false;  // node 0 has a --state-dir
    std::string logs = {};         // how the files begin that are left in the options' folder if something fails
  };
  static absl::StatusOr<std::unique_ptr<DyingWorld>> Start(const CampaignOptions& options, const Spec& spec);

  // Trains the model while trainers, servers and daemons die, beside an undisturbed training. INTERNAL names the
  // violation: an answered commit was made again, a trainer was not told or did not finish, or a daemon's bytes differ
  // from the undisturbed training's.
  absl::Status Train(const std::string& model, std::mt19937_64& random, CampaignResult::Count& count);

 private:
  // A training in progress.
  struct Play {
    const std::string& model;
    std::mt19937_64& random;
    CampaignResult::Count& count;
    std::vector<ChildProcess>& trainers;
    uint32_t epoch = 0;                         // in which the last deaths were
    absl::Time ended = absl::InfiniteFuture();  // when the dead were replaced
  };

  DyingWorld(const CampaignOptions& options, const Spec& spec);

  absl::StatusOr<KeptServer> StartServer() const;
  absl::Status TrainAndCompare(const std::string& model, std::mt19937_64& random, CampaignResult::Count& count);
  absl::Status DieAt(uint32_t commit, Play& play);
  absl::Status AwaitRandomMoment(uint32_t commit, Play& play);
  absl::Status Happen(absl::Span<const Death> deaths, uint32_t commit, Play& play);
  absl::Status End(const Death& death, absl::Duration after, Play& play);
  absl::Status Begin(const Death& death, uint32_t commit, Play& play);
  absl::Status AwaitBack(const Death& death);
  absl::Status AwaitTold(absl::Span<const Death> deaths, uint32_t commit, absl::Time since, Play& play);
  // Writes the stacks of servers and trainers beside the logs.
  void KeepStacks(std::vector<ChildProcess>& trainers) const;
  std::string LogOf(int node) const;
  std::string Name() const;

  const CampaignOptions options_;
  const Spec spec_;
  const TemporaryDirectory folder_;
  std::unique_ptr<KeptServer> server_;
};

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_DYING_WORLD_H_
