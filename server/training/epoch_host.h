// The rest of a model, as its epochs need it.
#ifndef PARAMSHARD_SERVER_TRAINING_EPOCH_HOST_H_
#define PARAMSHARD_SERVER_TRAINING_EPOCH_HOST_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/base/clock.h"
#include "server/data_plane/collectives.h"
#include "server/state/committed_state.h"
#include "server/terms/commit_log.h"
#include "server/terms/save_message.h"
#include "server/training/model_journal.h"
#include "server/training/placed_model.h"

namespace paramshard::server {

// Called on threads of the epoch, without its locks.
class EpochHost {
 public:
  virtual ~EpochHost() = default;

  // Returns true if trainers may ask for saves.
  virtual bool may_save() const = 0;
  // Called before trainers are told that the epoch has started: history and planes are those of the epoch.
  virtual void OnEpochReady() = 0;
  // Called when a commit is decided, before it is applied: the state that it replaces is to be saved.
  virtual void OnSaveOrder(const SaveOrder& order) = 0;
  // Called when a commit is settled, before it is answered; `save`: the trainers ask for it.
  virtual void OnAnswered(const CommitAnswer& answer, bool save) = 0;
  // Called when the epoch is over: whatever its last commit came to, the state is in place.
  virtual void OnEpochOver() = 0;

  using Engines = absl::Span<const std::unique_ptr<Collectives>>;  // of the daemon's ranks in order
  // Sends the state to a node that gets it from a replica, or receives it, before the first command of an epoch.
  virtual absl::Status SendState(int receiver, Engines engines, SteadyTime deadline) = 0;
  virtual absl::Status ReceiveState(const std::string& history_id, int donor, Engines engines, SteadyTime deadline) = 0;
};

// Objects that all epochs of a model work on. They outlive the epochs.
struct EpochContext {
  const PlacedModel& model;
  CommittedState& state;
  ModelJournal* journal = nullptr;  // null where nothing outlives the server
  EpochHost& host;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_EPOCH_HOST_H_
