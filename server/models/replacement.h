// New state of a model, in the place of the present one.
#ifndef PARAMSHARD_SERVER_MODELS_REPLACEMENT_H_
#define PARAMSHARD_SERVER_MODELS_REPLACEMENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "server/journal/journal_content.h"
#include "server/state/replica_state.h"
#include "server/state/scaling_book.h"
#include "server/terms/commit_log.h"
#include "server/terms/history.h"

namespace paramshard::server {

// Says what an import makes of the numbers and of the history.
struct ImportedState {
  std::optional<int64_t> commit_number = {};  // unset: they stay
  std::optional<int64_t> version = {};
  std::optional<HistoryId> history = {};  // unset: drawn, and the lineage made from `content`
  ImportedContent content = {};
  ChangeSource source = {};  // left to the next server if this one dies meanwhile
  absl::uint128 run = 0;     // History::run
};

// Says what a restore makes of all that is not in tensors.
struct RestoredState {
  CommitLog::State commits;
  std::vector<ScalingBook::Record> scaling = {};  // of parameters whose encoding is the one they were saved with
  absl::uint128 checkpoint_id = 0;                // which the lineage is made from
  HistoryParent parent;
  ChangeSource source = {};  // left to the next server if this one dies meanwhile, and that can do it alone
  std::optional<HistoryId> history = {};  // that begins; unset: drawn
};

// The state that is replaced.
struct PresentState {
  std::string model;
  uint64_t spec_fingerprint = 0;
  CommitLog::Numbers numbers;
  History history;
  bool untouched = false;  // no commit since the history began
  int64_t generation = 0;
  bool in_doubt = false;  // its numbers differ from the journal's, or maybe from other daemons'
  bool lost = false;      // trainers must not train on from it
};

// The new state except for its tensors.
struct Replacement {
  // INVALID_ARGUMENT numbers out of order; then no id is drawn.
  static absl::StatusOr<Replacement> OfImport(const ImportedState& imported, const PresentState& present,
                                              const HistoryIdSource& draw_history);
  static absl::StatusOr<Replacement> OfRestore(const RestoredState& restored, const PresentState& present,
                                               const HistoryIdSource& draw_history);
  // Goes on with the history of a replica in another daemon.
  static Replacement OfReplica(const ReplicaState& replica, const PresentState& present);

  History history;
  int64_t history_begin = 0;  // the commit number that it begins with
  CommitLog::State commits;
  std::vector<ScalingBook::Record> scaling = {};
  ChangeSource source = {};  // as far as a journal has room for it, and the next server could use it
  int64_t generation = 0;    // that begins
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_REPLACEMENT_H_
