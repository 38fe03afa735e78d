// Kept memory of a model, which outlives the server, and the journal in it.
#ifndef PARAMSHARD_SERVER_MODELS_DURABILITY_H_
#define PARAMSHARD_SERVER_MODELS_DURABILITY_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/device/kept_memory.h"
#include "server/models/state_recovery.h"
#include "server/state/shard_placement.h"
#include "server/training/model_journal.h"
#include "server/training/placed_model.h"

namespace paramshard::server {

// Thread-safe once it is open. Where `memory` is null nothing outlives the server, and all calls do nothing.
class Durability {
 public:
  explicit Durability(std::unique_ptr<KeptMemory> memory) : memory_(std::move(memory)) {}

  // Begins the journal, or goes on with the one of `inherited`. It comes first: memory allocated later belongs to a
  // model that is being made. `before_answer`: ModelJournal::BeforeAnswer. Errors of ModelJournal.
  absl::Status Open(const PlacedModel& model, const MovePolicy& moves, const InheritedModel* inherited,
                    std::function<absl::Status()> before_answer);

  // Null where nothing is kept.
  ModelJournal* journal() const { return journal_.get(); }
  KeptMemory* memory() const { return memory_.get(); }

  // Takes the memory from its keeper: it ends with the model. Idempotent; an error leaves all as it was.
  absl::Status Drop();
  // Does the same for all pieces but one. On an error some may be dropped.
  absl::Status DropAllBut(const std::string& piece);
  // Leaves the memory to the next owner of the model's name if `leave` returns true: from then on it is not dropped. No
  // other thread drops the memory meanwhile.
  void Leave(absl::FunctionRef<bool()> leave);
  // Drops what is kept under the model's name and is none of its pieces. Failures are logged.
  void DropUnclaimed(const PlacedModel& model);

 private:
  absl::Status DropBy(absl::FunctionRef<absl::Status(KeptMemory& memory)> drop);

  const std::unique_ptr<KeptMemory> memory_;
  std::unique_ptr<ModelJournal> journal_;  // constant once it is open

  absl::Mutex dropping_;                                // held while the keeper is asked; no other call waits for it
  bool is_dropped_ ABSL_GUARDED_BY(dropping_) = false;  // or left to another model of that name
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_DURABILITY_H_
