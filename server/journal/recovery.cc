#include "server/journal/recovery.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/journal/journal_reader.h"

namespace paramshard::server {
namespace {

absl::Status Lost(absl::string_view what) { return absl::DataLossError(what); }

// Returns true if the commit may become the next one later. Older commits never do.
bool IsAhead(const CommitKey& key, const CommitKey& next) {
  return key.commit_number >= 0 && (key.epoch > next.epoch || (key.epoch == next.epoch && key.history == next.history &&
                                                               key.commit_number > next.commit_number));
}

// Band n of a step waits for all bands before it except the last one, which limits the distance of the lanes.
bool InOrder(const RankProgress& progress) {
  return progress[1].done >= progress[0].done - 2 && progress[0].done >= progress[1].done - 1;
}

absl::StatusOr<RankRedo> RedoOfBands(const JournalRank& rank, int64_t position, const RankProgress& progress) {
  static_assert(kBandLanes == 2, "the order of other lanes");
  if (!InOrder(progress))
    return Lost(absl::StrCat("rank ", rank.rank, ": bands were done in an order that no step has"));
  const auto bands = static_cast<int>(rank.bands.size());
  RankRedo redo{.rank = rank.rank, .next = bands, .forward = position == 0};
  for (int lane = 0; lane < kBandLanes; ++lane) {
    redo.done[lane] = progress[lane].done;
    redo.torn += std::max(0, progress[lane].begun - progress[lane].done);
    redo.next = std::min(redo.next, lane + kBandLanes * progress[lane].done);
  }
  redo.complete = redo.next == bands;
  return redo;
}

// A step in place has overwritten its input, so that a begun one cannot be repeated.
absl::StatusOr<RankRedo> RedoInPlace(const JournalRank& rank, const LaneProgress& progress) {
  if (progress.begun > progress.done && rank.trainable_count > 0) {
    const JournalRank::Extent& first = rank.extents.front();
    return Lost(absl::StrCat("rank ", rank.rank, ": a step in place was interrupted; lost are ", rank.trainable_count,
                             " extents, from rows ", first.first_row, " to ", first.end_row, " of parameter ",
                             first.parameter, " of unit ", first.unit, " on"));
  }
  return RankRedo{.rank = rank.rank, .done = {progress.done, 0}, .next = progress.done, .complete = progress.done > 0};
}

// Fills in a plan, following the table from top to bottom.
class Planner {
 public:
  Planner(const JournalReader& reader, RecoveryPlan& plan) : reader_(reader), plan_(plan) {}

  // Returns an error if the model is lost.
  absl::Status Run() {
    plan_.identity = reader_.identity();
    ASSIGN_OR_RETURN(const LifecycleRecord lifecycle, reader_.Lifecycle());
    switch (lifecycle.lifecycle) {
      case JournalLifecycle::kCreating:
        plan_ = RecoveryPlan();
        plan_.action = RecoveryAction::kDrop;
        return absl::OkStatus();
      case JournalLifecycle::kChanging:
        return PlanChange(lifecycle.source);
      case JournalLifecycle::kUsable:
      case JournalLifecycle::kChanged:
        return PlanUsable();
    }
    return Lost("journal: unknown lifecycle");
  }

 private:
  absl::Status PlanChange(const ChangeSource& source) {
    // A daemon that makes the model anew is healed again, and does not begin it with its initial values by mistake.
    if (source.kind == ChangeSource::Kind::kReplica) return Lost("a replica was to heal it, and had not done so");
    if (source.kind == ChangeSource::Kind::kStream && reader_.Epoch().value_or(JournalEpoch()).values_follow) {
      // Its creator announced the import, and brings all of it again to a model that is created again.
      plan_ = RecoveryPlan();
      plan_.action = RecoveryAction::kDrop;
      return absl::OkStatus();
    }
    plan_.change = source;
    if (!source.repeatable()) {
      return Lost(source.kind == ChangeSource::Kind::kCheckpoint
                      ? "a restore of several daemons was interrupted"
                      : "an import was interrupted, and its sender disconnected");
    }
    // A checkpoint replaces everything.
    if (source.kind == ChangeSource::Kind::kFiles) RETURN_IF_ERROR(PlanNumbers().status());
    plan_.action = RecoveryAction::kRedoChange;
    return absl::OkStatus();
  }

  // Plans the numbers of the answered commit.
  absl::StatusOr<NumbersRecord> PlanNumbers() {
    ASSIGN_OR_RETURN(plan_.epoch, reader_.Epoch());
    ASSIGN_OR_RETURN(NumbersRecord stored, reader_.StoredNumbers());
    ASSIGN_OR_RETURN(plan_.numbers, reader_.Numbers(stored));
    if (stored.generation != plan_.epoch->generation) return Lost("journal: numbers of another generation");
    return stored;
  }

  absl::Status PlanUsable() {
    ASSIGN_OR_RETURN(const NumbersRecord stored, PlanNumbers());
    ASSIGN_OR_RETURN(PreparedRecord prepared, reader_.Prepared());
    ASSIGN_OR_RETURN(DecidedRecord decided, reader_.Decided());
    const CommitKey next{plan_.epoch->history, plan_.epoch->epoch, stored.commit_number + 1};
    if (IsAhead(prepared.key, next) || IsAhead(decided.key, next)) {
      return Lost("journal: a commit of an epoch that was not begun, or after the next one");
    }
    if (decided.key == next && prepared.key != next)
      return Lost("journal: a decision of a commit that was not prepared");
    if (decided.key.commit_number >= 0) {
      plan_.last_decision = LastDecision{decided.key.history, decided.key.epoch, decided.commit};
    }
    plan_.action = RecoveryAction::kServe;
    if (prepared.key != next) return absl::OkStatus();
    plan_.prepared = std::move(prepared.commit);
    RETURN_IF_ERROR(reader_.ReadClientStates(next.commit_number, prepared.client_states, plan_.prepared->client_states,
                                             plan_.prepared->reader_data));
    if (decided.key != next) {
      // Node 0 writes a decision before it tells any node.
      if (plan_.identity->node != 0) plan_.action = RecoveryAction::kQueryNode0;
      return absl::OkStatus();
    }
    plan_.decided = decided.commit;
    plan_.action = RecoveryAction::kAnswerSkip;
    return decided.commit.apply ? PlanApply() : absl::OkStatus();
  }

  absl::Status PlanApply() {
    for (size_t i = 0; i < plan_.identity->ranks.size(); ++i) {
      const JournalRank& rank = plan_.identity->ranks[i];
      ASSIGN_OR_RETURN(const RankProgress progress,
                       reader_.Progress(static_cast<int>(i), plan_.decided->commit_number));
      ASSIGN_OR_RETURN(RankRedo redo, rank.bands.empty() ? RedoInPlace(rank, progress[0])
                                                         : RedoOfBands(rank, plan_.numbers->positions[i], progress));
      plan_.redo.push_back(redo);
    }
    plan_.action = RecoveryAction::kRedoApply;
    return absl::OkStatus();
  }

  const JournalReader& reader_;
  RecoveryPlan& plan_;
};

}  // namespace

const char* RecoveryActionName(RecoveryAction action) {
  switch (action) {
    case RecoveryAction::kNotBegun:
      return "nothing";
    case RecoveryAction::kDrop:
      return "drop";
    case RecoveryAction::kRedoChange:
      return "redo the change";
    case RecoveryAction::kServe:
      return "none";
    case RecoveryAction::kQueryNode0:
      return "query node 0";
    case RecoveryAction::kAnswerSkip:
      return "answer the skip";
    case RecoveryAction::kRedoApply:
      return "redo the apply";
    case RecoveryAction::kDataLoss:
      return "data loss";
  }
  return "";
}

int TornBands(const RecoveryPlan& plan) {
  int torn = 0;
  for (const RankRedo& redo : plan.redo) torn += redo.torn;
  return torn;
}

absl::StatusOr<RecoveryPlan> PlanRecovery(absl::Span<const uint8_t> journal) {
  RecoveryPlan plan;
  absl::StatusOr<JournalReader> reader = JournalReader::Open(journal);
  if (absl::IsFailedPrecondition(reader.status())) return reader.status();
  if (reader.ok() && !reader->begun()) return plan;
  const absl::Status planned = reader.ok() ? Planner(*reader, plan).Run() : reader.status();
  if (planned.ok()) return plan;
  plan.action = RecoveryAction::kDataLoss;
  plan.loss = std::string(planned.message());
  return plan;
}

}  // namespace paramshard::server
