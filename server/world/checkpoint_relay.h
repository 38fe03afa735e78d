// Relays of node 0's saves and restores to the other nodes, and of their reports to node 0.
#ifndef PARAMSHARD_SERVER_WORLD_CHECKPOINT_RELAY_H_
#define PARAMSHARD_SERVER_WORLD_CHECKPOINT_RELAY_H_

#include <map>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/terms/restore_message.h"
#include "server/terms/save_message.h"
#include "server/world/model_epochs.h"
#include "server/world/world_context.h"

namespace paramshard::server {

// Not thread-safe: called under the coordinator's lock. Messages of node 0 go to all other nodes, those of another node
// to node 0, with their sender. Messages that only the other side may send are ignored.
class SaveRelay {
 public:
  // Both outlive it.
  SaveRelay(WorldContext* world, Models* models) : world_(*world), models_(*models) {}

  // Errors: see Cluster::Send.
  absl::Status Step(int node, const SaveMessage& message);
  // Tells node 0 that a lost node writes no part of the saves in progress.
  void Lose(int node);

 private:
  absl::Status TellFollowers(const SaveMessage& message);
  void TellLeader(int node, SaveMessage message);
  absl::Status CheckMayOrder(const std::string& model, const SaveOrder& order);

  WorldContext& world_;
  Models& models_;
};

class RestoreRelay {
 public:
  RestoreRelay(WorldContext* world, Models* models) : world_(*world), models_(*models) {}

  absl::Status Step(int node, const RestoreMessage& message);
  // Tells node 0 that a lost node takes no part in the restores in progress.
  void Lose(int node);
  // See Cluster::restored_nodes.
  Nodes nodes_of(absl::string_view model, absl::uint128 id) const;

 private:
  struct Ordered {
    RestoreOrder order;
    Nodes nodes;  // its receivers and node 0, ascending
  };

  absl::Status TellFollowers(const RestoreMessage& message);
  void TellLeader(int node, RestoreMessage message);
  // UNAVAILABLE naming a missing node that the restore needs.
  absl::StatusOr<Nodes> NodesFor(const std::string& model, const RestoreOrder& order) const;
  // Writes to the log, before anything changes, that the restore replaces the states of absent nodes.
  absl::Status WriteReplaced(const std::string& model, const RestoreGo& go);

  WorldContext& world_;
  Models& models_;
  std::map<std::string, Ordered, std::less<>> restores_;  // in progress, by model
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_CHECKPOINT_RELAY_H_
