#include "server/terms/state_condition.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

absl::string_view NounOf(ChangeKind kind) {
  switch (kind) {
    case ChangeKind::kImport:
      break;
    case ChangeKind::kRestore:
      return "a restore";
    case ChangeKind::kHealing:
      return "a healing by a replica";
  }
  return "an import";
}

}  // namespace

absl::string_view OperationOf(ChangeKind kind) {
  switch (kind) {
    case ChangeKind::kImport:
      break;
    case ChangeKind::kRestore:
      return "restore";
    case ChangeKind::kHealing:
      return "heal";
  }
  return "import into";
}

absl::Status StateCondition::unfinished() const {
  if (!is_unfinished()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("model ", model_, ": ", NounOf(kind_),
                   " was interrupted by the end of the last server, and is repeated; try again later"));
}

absl::Status StateCondition::CheckSettled(absl::string_view operation) const {
  return stage_ == Stage::kSettled ? absl::OkStatus() : BeingChanged(operation);
}

absl::Status StateCondition::CheckFinished(absl::string_view operation) const {
  return is_unfinished() ? BeingChanged(operation) : absl::OkStatus();
}

absl::Status StateCondition::CheckNotChanging(absl::string_view operation) const {
  return is_changing() ? BeingChanged(operation) : absl::OkStatus();
}

absl::Status StateCondition::BeingChanged(absl::string_view operation) const {
  const std::optional<RestoreProgress> done = progress();
  const std::string share = done.has_value() ? absl::StrCat(" (", done->percent(), " %)") : "";
  return absl::UnavailableError(absl::StrCat(operation, " ", model_, ": ", NounOf(kind_), share,
                                             " is being applied; try again when it is through"));
}

std::optional<RestoreProgress> StateCondition::progress() const {
  if (!watch_.progress) return std::nullopt;
  return watch_.progress();
}

absl::Status StateCondition::TakeImportLock(ChangeKind kind) {
  if (is_import_locked()) {
    return absl::UnavailableError(absl::StrCat(OperationOf(kind), " ", model_,
                                               ": another import, restore or healing is in progress; try again later"));
  }
  import_lock_ = kind;
  return absl::OkStatus();
}

// --- The change

void StateCondition::Resume(ChangeKind kind) {
  PARAMSHARD_CHECK(stage_ == Stage::kSettled);
  stage_ = Stage::kCutOff;
  kind_ = kind;
}

void StateCondition::Begin(ChangeKind kind, const RestoreWatch& watch) {
  PARAMSHARD_CHECK(!is_changing());
  begun_at_ = stage_;
  stage_ = Stage::kHeld;
  kind_ = kind;
  watch_ = watch;
}

void StateCondition::GiveUp() {
  PARAMSHARD_CHECK(stage_ == Stage::kHeld);
  EndAt(begun_at_);
}

void StateCondition::Write() {
  PARAMSHARD_CHECK(stage_ == Stage::kHeld);
  stage_ = Stage::kWriting;
}

// The state is usable: an import begins with a usable one, and a restore replaces a torn one.
void StateCondition::Settle() {
  PARAMSHARD_CHECK(stage_ == Stage::kWriting);
  EndAt(Stage::kSettled);
  usable_ = absl::OkStatus();
  doubt_ = absl::OkStatus();
}

absl::Status StateCondition::CutOff(const absl::Status& why) {
  PARAMSHARD_CHECK(stage_ == Stage::kWriting);
  EndAt(Stage::kCutOff);
  return absl::UnavailableError(absl::StrCat("model ", model_, ": ", NounOf(kind_), " was given up (", why.message(),
                                             "), and has to be repeated"));
}

void StateCondition::Break(const absl::Status& why) {
  PARAMSHARD_CHECK(stage_ == Stage::kWriting);
  EndAt(Stage::kSettled);
  Lose(NounOf(kind_), why);
}

void StateCondition::Cancel() const {
  if (watch_.cancel) watch_.cancel();
}

void StateCondition::EndAt(Stage stage) {
  stage_ = stage;
  watch_ = {};
}

// --- Failures of commits

void StateCondition::BreakCommit(int64_t last, const absl::Status& why) {
  Lose(absl::StrCat("commit ", last + 1), why);
}

void StateCondition::SetInDoubt(int64_t last, const absl::Status& why) {
  doubt_ = absl::DataLossError(
      absl::StrCat("model ", model_, ": commit ", last + 1, " is in doubt (", why.message(),
                   "): it is unknown whether other daemons have applied it. This daemon holds the state of commit ",
                   last, ", which can be exported; import a state, or delete the model"));
  log_->Write(LogLevel::kError, "a commit stays in doubt", {{"model", model_}, {"why", doubt_.ToString()}});
}

void StateCondition::SetUnwritten(const absl::Status& why) {
  doubt_ = absl::InternalError(
      absl::StrCat("model ", model_, ": ", why.message(),
                   ": its state is whole, and can be exported or saved, but would be lost with the server from the "
                   "next commit on; restart the daemon, whose next server writes it, import a state, or delete "
                   "the model"));
  log_->Write(LogLevel::kError, "failed to write the answer of a commit",
              {{"model", model_}, {"why", doubt_.ToString()}});
}

void StateCondition::AwaitReplica(absl::string_view why) {
  usable_ = absl::DataLossError(absl::StrCat("model ", model_, ": this daemon has no state of it (", why,
                                             "): a daemon that holds a replica heals it when the trainers of all "
                                             "daemons are there; or restore it, or delete the model"));
}

void StateCondition::Lose(absl::string_view what, const absl::Status& why) {
  if (!usable_.ok()) return;
  usable_ = absl::DataLossError(
      absl::StrCat("model ", model_, ": ", what, " broke off in the middle (", why.message(),
                   "), its state is partly the old and partly the new one; restore it, or delete the model"));
  log_->Write(LogLevel::kError, "model is unusable", {{"model", model_}, {"why", usable_.ToString()}});
}

}  // namespace paramshard::server
