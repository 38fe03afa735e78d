// What a server does with a model that its journal tells of: the table of docs/architecture.md, "What outlives the
// server".
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
  kNotBegun,    // there is no journal yet: alone it is nothing of a model, beside other pieces damage
  kDrop,        // it was being made or deleted: free all of it
  kRedoChange,  // do the change again, from `change`, over `numbers` where there are any
  kServe,       // the state is that of `numbers`: drop gradients, encode planes, serve
  kQueryNode0,  // ask node 0 what became of `prepared`, without voting; undecided: as kServe
  kAnswerSkip,  // answer `decided`, which changes no state
  kRedoApply,   // go on with the step of `prepared` and `decided` where `redo` says, then measure amaxes and answer
  kDataLoss,    // the state is gone, or nobody knows it: `loss`
};
const char* RecoveryActionName(RecoveryAction action);

// Where a rank goes on with a step.
struct RankRedo {
  int rank = 0;                           // in the world
  std::array<int, kBandLanes> done = {};  // bands of each lane that are done (BandedStep::Run); without bands 0 or 1
  int next = 0;                           // the first band that is not done, in the order of BandAt
  int torn = 0;                           // bands that were begun and are not done
  bool complete = false;                  // none is left
  bool forward = true;                    // the step moves the state to higher addresses
  friend bool operator==(const RankRedo&, const RankRedo&) = default;
};

// What node 0 answers daemons that ask for it. Of any other commit it knows nothing.
struct LastDecision {
  HistoryId history;
  int64_t epoch = 0;
  DecidedCommit commit;
  friend bool operator==(const LastDecision&, const LastDecision&) = default;
};

struct RecoveryPlan {
  RecoveryAction action = RecoveryAction::kNotBegun;
  std::string loss;                         // kDataLoss: what is lost, and why
  std::optional<JournalIdentity> identity;  // unset where it is not known: kDataLoss, or dropped
  std::optional<ChangeSource> change;       // while the state is changed
  // Set unless the model is dropped, lost, or replaced by a checkpoint; then as far as they are known. Of a model that
  // was changed in part those before the change.
  std::optional<JournalEpoch> epoch;
  std::optional<JournalNumbers> numbers;
  // The commit behind the numbers, in `epoch`. Set with kServe too, on node 0: nobody was told of a decision, and that
  // epoch is closed without one before anybody is answered.
  std::optional<PreparedCommit> prepared;
  std::optional<DecidedCommit> decided;
  std::vector<RankRedo> redo;  // by rank of this daemon: kRedoApply
  // The last decision since the history began on this daemon, of `decided` or of a commit that is answered since.
  std::optional<LastDecision> last_decision;
  friend bool operator==(const RecoveryPlan&, const RecoveryPlan&) = default;
};

// Of all ranks of this daemon: bands that the server before was in the middle of, and that are done again.
int TornBands(const RecoveryPlan& plan);

// The bytes of a journal, which may be any. FAILED_PRECONDITION one of another version of the format: nothing is to be done
// with the model, and nothing to be dropped.
absl::StatusOr<RecoveryPlan> PlanRecovery(absl::Span<const uint8_t> journal);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_JOURNAL_RECOVERY_H_
