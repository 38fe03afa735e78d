// A model's spec, laid out over the ranks of a world.
#ifndef PARAMSHARD_SERVER_TRAINING_PLACED_MODEL_H_
#define PARAMSHARD_SERVER_TRAINING_PLACED_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "server/base/clock.h"
#include "server/data_plane/topology.h"
#include "server/observe/log_throttle.h"
#include "server/terms/history.h"
#include "server/training/world.h"

namespace paramshard::server {

// Constant while the model lives. All that works on the model refers to it.
struct PlacedModel {
  ModelSpec spec;
  World world;
  Topology topology;
  Layout layout;
  uint64_t fingerprint = 0;         // of the spec without initial values
  uint64_t layout_fingerprint = 0;  // which a trainer compares with its own
  Lineage lineage_of_creation = {};
  absl::Duration step_timeout;
  const Clock* clock = &Clock::Steady();  // of deadlines; outlives the model
  bool sums_at_commit = false;            // see EngineSpec
  // True if a lost state may come back, from a replica or from a checkpoint: trainers wait for that.
  bool may_come_back = false;
  std::shared_ptr<ThrottledLog> log;

  const std::string& name() const { return spec.name; }
  int ranks() const { return world.rank_count(); }
  // Returns the place of one of this daemon's ranks among them.
  int local(int world_rank) const { return world_rank - world.first_rank; }
  // Bytes of the slots of the trainer of one of this daemon's ranks, with the landing area where sums wait for the
  // commit.
  int64_t slots_bytes(int rank) const {
    return layout.slots_bytes() + (sums_at_commit ? layout.landing_bytes(topology.GroupRank(rank)) : 0);
  }
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_PLACED_MODEL_H_
