// Goes on with the state of a model that another server has left behind.
#ifndef PARAMSHARD_SERVER_MODELS_STATE_RECOVERY_H_
#define PARAMSHARD_SERVER_MODELS_STATE_RECOVERY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model_spec.h"
#include "server/base/kept_store.h"
#include "server/device/kept_memory.h"
#include "server/journal/recovery.h"
#include "server/state/committed_state.h"
#include "server/terms/cluster.h"
#include "server/training/model_journal.h"

namespace paramshard::server {

// A model inherited from another server, and what its journal says. The journal is the first piece of a model: a model
// that has only a journal which was not begun is dropped; a model with other pieces and no journal is lost. A model
// that was lost before, and was being made anew, is still lost (LostModels).
struct InheritedModel {
  std::unique_ptr<KeptMemory> memory;
  const Memory* journal = nullptr;  // a piece of it
  RecoveryPlan plan;
  absl::Status doubt;  // whether a commit was applied on other daemons cannot be learnt: DATA_LOSS

  // `pieces` may be anything. FAILED_PRECONDITION a journal of another version, which is to be left alone;
  // RESOURCE_EXHAUSTED the journal cannot be mapped now.
  static absl::StatusOr<InheritedModel> Read(const std::string& name, KeptStore* store, KeptStore::Descriptors pieces);
  // Returns the spec. DATA_LOSS if it cannot be read, or if the plan says that the model is lost.
  absl::StatusOr<ModelSpec> Spec() const;
  // Asks node 0 what became of the commit of a plan that is kQueryNode0, writes it down, and plans anew. If that cannot
  // be learnt the state of the commit before stays, in doubt, and the journal stays as it is: the next server asks
  // again. UNAVAILABLE the cluster has stopped.
  absl::Status AskNode0(const ModelSpec& spec, Cluster& cluster);
};

// Returns what a restarted node 0 has to know of the epochs of the node 0 before it, which wrote each of its decisions
// down. FAILED_PRECONDITION a journal of another version.
absl::StatusOr<std::vector<ClosedEpoch>> ReadClosedEpochs(KeptStore& kept);

// Returns true if a model can go on from what its journal says: its state is there, whole or with a step to finish.
inline bool IsRecoverable(RecoveryAction action) {
  return action == RecoveryAction::kServe || action == RecoveryAction::kAnswerSkip ||
         action == RecoveryAction::kRedoApply;
}

// Brings the state to the end of a commit, the one that is answered or, where a decision was made, the next
// one, which is answered as it was decided. Planes are not encoded yet. `plan` is of the journal, and has numbers: of a
// model that is to be changed again those before it. Shards have adopted the memory. `shares_amaxes`: rows of a
// parameter lie on other daemons too, with which the next epoch settles the amaxes of a step that is finished here. No
// epoch runs. What breaks a device.
absl::Status RecoverState(const RecoveryPlan& plan, CommittedState& state, bool shares_amaxes, ModelJournal& journal);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_STATE_RECOVERY_H_
