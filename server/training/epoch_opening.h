// Opening of an epoch: what comes before its first command.
#ifndef PARAMSHARD_SERVER_TRAINING_EPOCH_OPENING_H_
#define PARAMSHARD_SERVER_TRAINING_EPOCH_OPENING_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/data_plane/topology.h"
#include "server/terms/cluster.h"
#include "server/training/epoch_engines.h"
#include "server/training/epoch_host.h"
#include "server/training/epoch_state.h"
#include "server/training/trainer.h"

namespace paramshard::server {

// Works on the thread of Epoch::Run, before other threads of the epoch begin. The calls come in this order.
class EpochOpening {
 public:
  // All outlive this.
  EpochOpening(const EpochContext& context, const EpochStart& start, const Topology& topology, EpochState& state,
               EpochEngines& engines)
      : context_(context), start_(start), topology_(topology), state_(state), engines_(engines) {}

  absl::Status AllocateRankSlots();
  // Sends or receives the state as the epoch's healings say, and waits until every node has it.
  absl::Status Heal();
  // Encodes planes of formats that NeedsAmax(), from the present masters of all daemons.
  absl::Status EncodeByAmax();
  // Sends the trainers, one for each rank, what they map, and tells them that the epoch has started. ABORTED one has
  // gone.
  absl::Status Greet(const std::vector<Trainer>& trainers);

 private:
  absl::Status AwaitHealed(const Healing& healing, absl::Duration timeout) const;
  // Returns how long healing may take; it depends on the number of bytes.
  absl::Duration HealTimeout() const;
  absl::Status Greet(int rank, const Trainer& trainer);
  EpochStartInfo InfoFor(int rank) const;

  const EpochContext& context_;
  const EpochStart& start_;
  const Topology& topology_;
  EpochState& state_;
  EpochEngines& engines_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_EPOCH_OPENING_H_
