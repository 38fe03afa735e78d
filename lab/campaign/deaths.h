// Deaths at the same moment of a step: trainers, servers, and daemons with their keepers.
#ifndef PARAMSHARD_LAB_CAMPAIGN_DEATHS_H_
#define PARAMSHARD_LAB_CAMPAIGN_DEATHS_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace paramshard::test {

enum class Mortal { kTrainer, kServer, kDaemon };

struct Death {
  Mortal mortal;
  int number;                                   // its rank, or its node
  std::vector<absl::Duration> again = {};       // its successors die this long after their starts
  absl::Duration pause = absl::ZeroDuration();  // before the next death

  // Number of deaths, including successors.
  int64_t count() const { return 1 + static_cast<int64_t>(again.size()); }
};

// Returns a text such as "rank 7, the server of node 2 and 1 that followed".
std::string Describe(absl::Span<const Death> deaths);

struct DeathOptions {
  int nodes = 2;
  int ranks = 2;
  // Daemons with their keepers die too: each holds a replica. The daemon behind one that is lost heals it, and its
  // server has to be the one that took part in the epoch; node 0 is healed where it keeps its decisions.
  bool replicas = false;
  bool node0_heals = false;
};

// One at least. Now and then the servers of all nodes.
std::vector<Death> DrawDeaths(const DeathOptions& options, std::mt19937_64& random);

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_DEATHS_H_
