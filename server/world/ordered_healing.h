// An operator's order that the state of one node counts: what it would do, and when it ends.
#ifndef PARAMSHARD_SERVER_WORLD_ORDERED_HEALING_H_
#define PARAMSHARD_SERVER_WORLD_ORDERED_HEALING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/terms/cluster.h"
#include "server/world/epoch_plan.h"
#include "server/world/membership.h"

namespace paramshard::server {

// Returns what an order would do with the state of every node. `last_commit`: the last decided one. Errors: see
// Cluster::OrderHealing.
absl::StatusOr<HealingAnswer> PreviewOrder(const ModelFacts& model, const Membership& members, int64_t last_commit,
                                           int donor);

// Requires an order, as all below do that end it.
void EndOrder(ModelFacts& model, absl::string_view why);
// Ends the order if its donor is this node and reports another state than the ordered one.
void CheckOrder(ModelFacts& model, int node);
// Notes that the model's epoch has begun with these healings, under this history, and logs the states that it gives up.
void BeginByOrder(ModelFacts& model, const std::vector<Healing>& healings, const std::string& history_id);
// Ends the order if the epoch that began by it has made a commit.
void EndOrderBehindCommit(ModelFacts& model);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_ORDERED_HEALING_H_
