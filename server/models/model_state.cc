#include "server/models/model_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/limits.h"
#include "kernels/base/status_macros.h"
#include "server/models/epoch_admission.h"

namespace paramshard::server {
namespace {

// Returns FAILED_PRECONDITION while an announced import is to replace the state: it is neither trained on nor saved.
absl::Status CheckValuesHaveCome(absl::string_view operation, absl::string_view model, const History& history) {
  if (!history.values_follow) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(operation, " ", model,
                   ": the values that its creator announced have not come; import them, or delete the model"));
}

}  // namespace

absl::Status BeingCopied(absl::string_view operation, absl::string_view model) {
  return absl::UnavailableError(
      absl::StrCat(operation, " ", model, ": the state is being copied for a save; try again when it is through"));
}

ModelState::ModelState(const PlacedModel& model, CommittedState& committed, ModelJournal* journal, History history,
                       int64_t deletion)
    : model_(model),
      committed_(committed),
      journal_(journal),
      condition_(model.name(), model.log),
      history_(std::move(history)),
      deletion_(deletion) {}

absl::Status ModelState::Resume(const InheritedModel& inherited) {
  const RecoveryPlan& plan = inherited.plan;
  absl::MutexLock lock(&mu_);
  if (plan.action == RecoveryAction::kRedoChange) {
    const bool restores = plan.change->kind == ChangeSource::Kind::kCheckpoint;
    condition_.Resume(restores ? ChangeKind::kRestore : ChangeKind::kImport);
  }
  // A checkpoint replaces everything.
  if (!plan.numbers.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(RecoverState(plan, committed_, model_.topology.spans_daemons(), *journal_));
  RETURN_IF_ERROR(committed_.EncodeAdopted());
  const JournalEpoch& epoch = *plan.epoch;
  history_ = {.id = epoch.history,
              .lineage = epoch.lineage,
              .parent = epoch.parent,
              .run = epoch.run,
              .values_follow = epoch.values_follow};
  deletion_ = epoch.deletion;
  history_begin_ = epoch.history_begin;
  generation_ = epoch.generation;
  last_epoch_ = epoch.epoch;
  if (!inherited.doubt.ok()) condition_.SetInDoubt(committed_.commits.numbers().commit_number, inherited.doubt);
  return absl::OkStatus();
}

absl::Status ModelState::Publish() {
  absl::MutexLock lock(&mu_);
  if (journal_ == nullptr || journal_->is_made()) return absl::OkStatus();
  return journal_->SetUsable(EpochOf(history_, history_begin_, generation_), committed_.commits.state(), committed_);
}

static_assert(wire::kPublicationDataBytes == kMaxReaderDataBytes);

absl::StatusOr<wire::PublishedVersion> ModelState::Readable() const {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(condition_.usable());
  RETURN_IF_ERROR(condition_.CheckSettled("read"));
  RETURN_IF_ERROR(CheckValuesHaveCome("read", model_.name(), history_));
  const CommitLog::Numbers numbers = committed_.commits.numbers();
  wire::PublishedVersion version{.commit_number = numbers.commit_number, .version = numbers.version};
  history_.id.ToString().copy(version.history_id, wire::kHistoryIdBytes);
  version.SetReaderData(committed_.commits.reader_data());
  return version;
}

void ModelState::PublishPlanes() const {
  committed_.publication->Publish([this] { return Readable(); });
}

absl::Status ModelState::AwaitReplica(absl::string_view why) {
  absl::MutexLock lock(&mu_);
  condition_.AwaitReplica(why);
  if (journal_ == nullptr) return absl::OkStatus();
  return journal_->BeginChange({.kind = ChangeSource::Kind::kReplica, .text = {}});
}

JournalEpoch ModelState::EpochOf(const History& history, int64_t history_begin, int64_t generation) const {
  return {.history = history.id,
          .lineage = history.lineage,
          .parent = history.parent,
          .history_begin = history_begin,
          .generation = generation,
          .epoch = last_epoch_,
          .run = history.run,
          .values_follow = history.values_follow,
          .deletion = deletion_};
}

// --- What there is to say

bool ModelState::Untouched() const { return committed_.commits.numbers().commit_number == history_begin_; }

bool ModelState::Fresh() const {
  return Untouched() && history_begin_ == 0 && history_.lineage == model_.lineage_of_creation;
}

// A commit that could not be written down leaves a whole state: that doubt is not a loss.
absl::Status ModelState::Loss() const {
  RETURN_IF_ERROR(condition_.usable());
  return absl::IsDataLoss(condition_.doubt()) ? condition_.doubt() : absl::OkStatus();
}

StateSnapshot ModelState::Snapshot() const {
  const CommitLog::Numbers numbers = committed_.commits.numbers();
  return {.numbers = {.history = history_.id, .commit_number = numbers.commit_number, .version = numbers.version},
          .lineage = history_.lineage,
          .generation = generation_};
}

PresentState ModelState::Present() const {
  return {.model = model_.name(),
          .spec_fingerprint = model_.fingerprint,
          .numbers = committed_.commits.numbers(),
          .history = history_,
          .untouched = Untouched(),
          .generation = generation_,
          .in_doubt = !condition_.doubt().ok(),
          .lost = !Loss().ok()};
}

absl::Status ModelState::usable() const {
  absl::MutexLock lock(&mu_);
  return condition_.usable();
}

absl::Status ModelState::doubt() const {
  absl::MutexLock lock(&mu_);
  return condition_.doubt();
}

absl::Status ModelState::unfinished() const {
  absl::MutexLock lock(&mu_);
  return condition_.unfinished();
}

absl::Status ModelState::loss() const {
  absl::MutexLock lock(&mu_);
  return Loss();
}

bool ModelState::untouched() const {
  absl::MutexLock lock(&mu_);
  return Untouched();
}

bool ModelState::fresh() const {
  absl::MutexLock lock(&mu_);
  return Fresh();
}

// An import over commits leaves their number, and moments: they stay trained.
ValueOrigin ModelState::origin() const {
  absl::MutexLock lock(&mu_);
  if (!Loss().ok()) return ValueOrigin::kLost;
  if (condition_.is_restoring() || (Untouched() && history_.parent.has_value())) return ValueOrigin::kRestored;
  if (committed_.commits.numbers().commit_number > 0) return ValueOrigin::kTrained;
  if (!Fresh()) return ValueOrigin::kImported;
  return history_.values_follow || condition_.is_importing() ? ValueOrigin::kImporting : ValueOrigin::kInitial;
}

History ModelState::history() const {
  absl::MutexLock lock(&mu_);
  return history_;
}

std::pair<History, int64_t> ModelState::history_and_begin() const {
  absl::MutexLock lock(&mu_);
  return {history_, history_begin_};
}

StateSnapshot ModelState::snapshot() const {
  absl::MutexLock lock(&mu_);
  return Snapshot();
}

absl::StatusOr<StateSnapshot> ModelState::Look(absl::string_view operation) const {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(condition_.usable());
  RETURN_IF_ERROR(condition_.CheckSettled(operation));
  return Snapshot();
}

int64_t ModelState::deletion() const {
  absl::MutexLock lock(&mu_);
  return deletion_;
}

int64_t ModelState::last_epoch() const {
  absl::MutexLock lock(&mu_);
  return last_epoch_;
}

std::optional<RestoreProgress> ModelState::progress() const {
  absl::MutexLock lock(&mu_);
  return condition_.progress();
}

std::optional<Rollback> ModelState::rollback() const {
  absl::MutexLock lock(&mu_);
  return rollback_;
}

// --- Epochs

absl::Status ModelState::CheckMayAttach() const {
  absl::MutexLock lock(&mu_);
  if (const absl::Status lost = Loss(); lost.ok()) {
    RETURN_IF_ERROR(condition_.doubt());
    RETURN_IF_ERROR(CheckValuesHaveCome("attach", model_.name(), history_));
  } else if (!model_.may_come_back) {
    return lost;
  }
  return condition_.CheckSettled("attach");
}

ModelReport ModelState::Report() const {
  absl::MutexLock lock(&mu_);
  const CommitLog::Numbers numbers = committed_.commits.numbers();
  const std::optional<int> previous = committed_.commits.previous_node();
  return {.model = model_.name(),
          .spec_fingerprint = model_.fingerprint,
          .commit_number = numbers.commit_number,
          .version = numbers.version,
          .lineage = history_.lineage.ToString(),
          .history_id = history_.id.ToString(),
          .untouched = Untouched(),
          .fresh = Fresh(),
          .last_epoch = last_epoch_,
          .shard_size = model_.topology.shard_size(),
          .attached_ranks = {},
          // After an import and a creation no rank has sent client states.
          .keeps_previous = previous.has_value() || (Untouched() && !history_.parent.has_value()),
          .previous = previous,
          .needs_every_node = model_.spec.gradient_reduction != GradientReduction::kMean,
          .lost = model_.may_come_back ? Loss() : absl::OkStatus()};
}

absl::Status ModelState::BeginEpoch(const EpochStart& start) {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckActive(start, model_.topology));
  if (const Healing* const healing = HealingOf(start, model_.topology.node()); healing != nullptr) {
    // The replica's history comes with its state, and is written down then.
    RETURN_IF_ERROR(CheckMayBeHealed(start, *healing, Present()));
  } else {
    ASSIGN_OR_RETURN(history_, HistoryInEpoch(start, Present()));
    if (start.fork.has_value()) history_begin_ = committed_.commits.numbers().commit_number;
    if (journal_ != nullptr) RETURN_IF_ERROR(journal_->BeginEpoch(start.epoch, history_, history_begin_));
  }
  last_epoch_ = start.epoch;
  return absl::OkStatus();
}

absl::Status ModelState::EndEpoch(const OpenCommit& commit) {
  absl::MutexLock lock(&mu_);
  const int64_t last = committed_.commits.numbers().commit_number;
  if (!commit.torn.ok()) condition_.BreakCommit(last, commit.torn);
  if (!commit.unwritten.ok()) condition_.SetUnwritten(commit.unwritten);
  if (!commit.doubt.ok()) condition_.SetInDoubt(last, commit.doubt);
  return condition_.usable().ok() ? condition_.doubt() : condition_.usable();
}

// --- Copies

absl::StatusOr<HeldState> ModelState::Hold() {
  HeldState held;
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(condition_.usable());
    RETURN_IF_ERROR(condition_.CheckSettled("save"));
    RETURN_IF_ERROR(CheckValuesHaveCome("save", model_.name(), history_));
    if (model_.topology.spans_daemons() && !committed_.book.is_settled()) {
      return absl::UnavailableError(absl::StrCat("save ", model_.name(),
                                                 ": amaxes of the last commit are not shared by all daemons yet; "
                                                 "save after the next epoch has started"));
    }
    if (!committed_.copies.BeginCopy()) {
      return absl::AbortedError(absl::StrCat("save ", model_.name(), ": a commit is in progress"));
    }
    held = {.numbers = Snapshot().numbers,
            .generation = generation_,
            .parent = history_.parent,
            .commits = committed_.commits.state()};
  }
  // Histories may be many megabytes, and only steps and changes wait for this copy of them.
  held.scaling = committed_.book.records();
  return held;
}

// --- Changes

absl::Status ModelState::TakeImportLock(ChangeKind kind, bool again) {
  absl::MutexLock lock(&mu_);
  if (!again) RETURN_IF_ERROR(condition_.CheckFinished(OperationOf(kind)));
  if (kind == ChangeKind::kImport) RETURN_IF_ERROR(condition_.usable());
  return condition_.TakeImportLock(kind);
}

void ModelState::ReleaseImportLock() {
  absl::MutexLock lock(&mu_);
  condition_.ReleaseImportLock();
}

bool ModelState::is_import_locked() const {
  absl::MutexLock lock(&mu_);
  return condition_.is_import_locked();
}

absl::Status ModelState::CheckSettled(absl::string_view operation) const {
  absl::MutexLock lock(&mu_);
  return condition_.CheckSettled(operation);
}

bool ModelState::is_changing() const {
  absl::MutexLock lock(&mu_);
  return condition_.is_changing();
}

void ModelState::BeginDrain() {
  absl::MutexLock lock(&mu_);
  drains_ = true;
  condition_.Cancel();
}

absl::StatusOr<Replacement> ModelState::BeginChange(ChangeKind kind, MakeReplacement make, const RestoreWatch& watch) {
  const absl::string_view operation = OperationOf(kind);
  absl::MutexLock lock(&mu_);
  if (kind == ChangeKind::kImport) RETURN_IF_ERROR(condition_.usable());
  RETURN_IF_ERROR(condition_.CheckNotChanging(operation));
  if (committed_.copies.is_copying()) return BeingCopied(operation, model_.name());
  ASSIGN_OR_RETURN(Replacement replacement, make(Present()));
  condition_.Begin(kind, watch);
  return replacement;
}

absl::Status ModelState::BeginWriting(const Replacement& replacement, const absl::Status& begun) {
  absl::MutexLock lock(&mu_);
  absl::Status status = begun;
  if (status.ok() && journal_ != nullptr && journal_->is_made()) status = journal_->BeginChange(replacement.source);
  if (status.ok()) {
    condition_.Write();
  } else {
    condition_.GiveUp();
  }
  return status;
}

absl::StatusOr<History> ModelState::EndChange(const Replacement& replacement, absl::Status status,
                                              absl::string_view rollback_why) {
  absl::MutexLock lock(&mu_);
  generation_ = replacement.generation;
  if (status.ok() && journal_ != nullptr) {
    status = journal_->SetUsable(EpochOf(replacement.history, replacement.history_begin, generation_),
                                 replacement.commits, committed_);
  }
  if (!status.ok()) return Fail(replacement, status);
  if (!rollback_why.empty()) {
    rollback_ = {.from_commit_number = committed_.commits.numbers().commit_number,
                 .commit_number = replacement.commits.numbers.commit_number,
                 .why = std::string(rollback_why)};
  }
  history_ = replacement.history;
  history_begin_ = replacement.history_begin;
  committed_.commits.Restore(replacement.commits);
  condition_.Settle();
  return history_;
}

// A drain leaves the change to the next server if the journal has what the change is made from; a change that is made
// again may be left once more.
absl::Status ModelState::Fail(const Replacement& replacement, const absl::Status& why) {
  const bool again = drains_ || (!condition_.unfinished().ok() && MayPass(why));
  const bool is_published = journal_ != nullptr && journal_->is_made();
  if (again && is_published && replacement.source.repeatable()) return condition_.CutOff(why);
  condition_.Break(why);
  return condition_.usable();
}

}  // namespace paramshard::server
