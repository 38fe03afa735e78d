// Recovery of a model from its journal, by the table in docs/internals/architecture.md, "What outlives the server".
#ifndef PARAMSHARD_SERVER_JOURNAL_RECOVERY_H_
#define PARAMSHARD_SERVER_JOURNAL_RECOVERY_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/optim/state_bands.h"
#include "server/journal/journal_content.h"

namespace paramshard::server {

enum class RecoveryAction : uint8_t {
  kNotBegun,    // there is no journal yet: no model if alone, damage if there are other pieces
  kDrop,        // the model was being made or deleted: free all of it
  kRedoChange,  // repeat the change, from `change`, over `numbers` if set
  kServe,       // the state has `numbers`: drop gradients, encode planes, serve
  kQueryNode0,  // ask node 0 for the decision of `prepared`, without voting; if undecided, do as for kServe
  kAnswerSkip,  // answer `decided`, which changes no state
  kRedoApply,   // continue the step of `prepared` and `decided` from `redo`, then measure amaxes and answer
  kDataLoss,    // the state is lost or unknown: `loss`
};
const char* RecoveryActionName(RecoveryAction action);

// Point from which a rank continues a step.
struct RankRedo {
  int rank = 0;                           // in the world
  std::array<int, kBandLanes> done = {};  // bands of each lane that are done (BandedStep::Run); without bands 0 or 1
  int next = 0;                           // first band that is not done, in the order of BandAt
  int torn = 0;                           // number of bands that were begun and are not done
  bool complete = false;                  // all bands are done
  bool forward = true;                    // the step moves the state to higher addresses
  friend bool operator==(const RankRedo&, const RankRedo&) = default;
};

// Decision with which node 0 answers other daemons. It knows no other commit.
struct LastDecision {
  HistoryId history;
  int64_t epoch = 0;
  DecidedCommit commit;
  friend bool operator==(const LastDecision&, const LastDecision&) = default;
};

struct RecoveryPlan {
  RecoveryAction action = RecoveryAction::kNotBegun;
  std::string loss;                         // kDataLoss: the lost part and the reason
  std::optional<JournalIdentity> identity;  // unset if not known: kDataLoss, or dropped
  std::optional<ChangeSource> change;       // set during a change
  // Set, unless the model is dropped, lost, or replaced by a checkpoint: then only if known. For a partly changed model
  // the values before the change.
  std::optional<JournalEpoch> epoch;
  std::optional<JournalNumbers> numbers;
  // The commit after the numbers, in `epoch`. Set with kServe too, on node 0: no node was told a decision, and the
  // epoch is closed without one before any node is answered.
  std::optional<PreparedCommit> prepared;
  std::optional<DecidedCommit> decided;
  std::vector<RankRedo> redo;  // by rank of this daemon: kRedoApply
  // The last decision since the history began on this daemon: of `decided`, or of a commit that was answered since.
  std::optional<LastDecision> last_decision;
  friend bool operator==(const RecoveryPlan&, const RecoveryPlan&) = default;
};

// Returns the number of bands, over all ranks of this daemon, that the last server was in the middle of. They are done
// again.
int TornBands(const RecoveryPlan& plan);

// Plans the recovery from a journal's bytes, which may be any. FAILED_PRECONDITION the journal has another version of
// the format: the model must be left alone, and nothing may be dropped.
absl::StatusOr<RecoveryPlan> PlanRecovery(absl::Span<const uint8_t> journal);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_JOURNAL_RECOVERY_H_
