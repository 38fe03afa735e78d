// Healing: a model gets its state from a replica in another daemon, or gives its state to one.
#ifndef PARAMSHARD_SERVER_MODELS_REPLICA_HEALING_H_
#define PARAMSHARD_SERVER_MODELS_REPLICA_HEALING_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/base/clock.h"
#include "server/models/model_state.h"
#include "server/models/state_changes.h"
#include "server/state/committed_state.h"
#include "server/training/epoch_host.h"
#include "server/training/placed_model.h"

namespace paramshard::server {

// Works at the start of an epoch, on its thread. Errors of the engines; UNAVAILABLE when the deadline has come.
class ReplicaHealing {
 public:
  // All outlive this.
  ReplicaHealing(const PlacedModel& model, CommittedState& committed, ModelState& state, StateChanges& changes)
      : model_(model), committed_(committed), state_(state), changes_(changes) {}

  absl::Status Send(int receiver, EpochHost::Engines engines, SteadyTime deadline);
  // Replaces the state by the one of `donor`. UNAVAILABLE it has another history or amaxes, or comes damaged; errors of
  // StateChanges::Heal.
  absl::Status Receive(const std::string& history_id, int donor, EpochHost::Engines engines, SteadyTime deadline);

 private:
  // Logs the state here, if there is one, that the donor's state replaces.
  void LogReplaced(int donor) const;
  void LogHealing(absl::string_view what, int node, SteadyTime begin) const;
  int64_t bytes() const;
  int64_t parameters() const;

  const PlacedModel& model_;
  CommittedState& committed_;
  ModelState& state_;
  StateChanges& changes_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_REPLICA_HEALING_H_
