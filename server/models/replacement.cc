#include "server/models/replacement.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"
#include "server/journal/journal_layout.h"
#include "server/terms/state_condition.h"

namespace paramshard::server {
namespace {

absl::Status CheckNumbers(ChangeKind kind, absl::string_view model, const CommitLog::Numbers& numbers) {
  if (numbers.version >= 0 && numbers.commit_number >= numbers.version && numbers.commit_number < kNumberLimit) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(OperationOf(kind), " ", model, ": want 0 <= version <= commit number < ", kNumberLimit,
                   ", got version ", numbers.version, " and commit number ", numbers.commit_number));
}

// A journal has not room for every request. What an import from files leaves would be read at the journal's commit, and
// that is not the one that it is applied to where this state is in doubt.
ChangeSource Remembered(const ChangeSource& source, const PresentState& present) {
  const bool fits = static_cast<int64_t>(source.text.size()) <= kMostSourceBytes;
  const bool is_of_journal = !present.in_doubt || source.kind != ChangeSource::Kind::kFiles;
  return fits && is_of_journal ? source : ChangeSource();
}

History HistoryOf(const ImportedState& imported, const PresentState& present, const CommitLog::Numbers& after,
                  const HistoryIdSource& draw_history) {
  if (imported.history.has_value()) {
    return {.id = *imported.history, .lineage = {imported.history->value}, .run = imported.run};
  }
  const StateBefore before{.origin = present.untouched ? present.history.lineage.value : present.history.id.value,
                           .commit_number = present.numbers.commit_number,
                           .version = present.numbers.version};
  return {.id = draw_history(),
          .lineage =
              LineageOfImport(present.spec_fingerprint, imported.content, before, after.commit_number, after.version),
          .run = imported.run};
}

}  // namespace

absl::StatusOr<Replacement> Replacement::OfImport(const ImportedState& imported, const PresentState& present,
                                                  const HistoryIdSource& draw_history) {
  const CommitLog::Numbers after{.commit_number = imported.commit_number.value_or(present.numbers.commit_number),
                                 .version = imported.version.value_or(present.numbers.version)};
  RETURN_IF_ERROR(CheckNumbers(ChangeKind::kImport, present.model, after));
  return Replacement{.history = HistoryOf(imported, present, after, draw_history),
                     .history_begin = after.commit_number,
                     .commits = {.numbers = after},
                     .source = Remembered(imported.source, present),
                     .generation = present.generation + 1};
}

absl::StatusOr<Replacement> Replacement::OfRestore(const RestoredState& restored, const PresentState& present,
                                                   const HistoryIdSource& draw_history) {
  RETURN_IF_ERROR(CheckNumbers(ChangeKind::kRestore, present.model, restored.commits.numbers));
  return Replacement{.history = {.id = restored.history.has_value() ? *restored.history : draw_history(),
                                 .lineage = LineageOfRestore(present.spec_fingerprint, restored.checkpoint_id),
                                 .parent = restored.parent},
                     .history_begin = restored.commits.numbers.commit_number,
                     .commits = restored.commits,
                     .scaling = restored.scaling,
                     .source = Remembered(restored.source, present),
                     .generation = present.generation + 1};
}

Replacement Replacement::OfReplica(const ReplicaState& replica, const PresentState& present) {
  History history = replica.history;
  history.run = present.history.run;
  return Replacement{.history = std::move(history),
                     .history_begin = replica.history_begin,
                     .commits = replica.commits,
                     .scaling = replica.scaling,
                     .source = {.kind = ChangeSource::Kind::kReplica, .text = {}},
                     .generation = present.generation + 1};
}

}  // namespace paramshard::server
