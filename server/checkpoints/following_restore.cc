#include "server/checkpoints/following_restore.h"

#include "absl/strings/str_cat.h"
#include "common/checkpoint/manifest.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"

namespace paramshard::server {
namespace {

// Largest number of sums in one message: a tensor's name has at most a few hundred bytes.
constexpr size_t kSumsOfMessage = 1000;

absl::StatusOr<CheckpointChoice> FindOrdered(const Model& model, const RestoreOrder& order) {
  ASSIGN_OR_RETURN(const CheckpointRequest request, ParseCheckpointRequest(order.folder));
  if (request.kind == CheckpointRequest::Kind::kFolder) {
    return FindCheckpoint(model.save_dir(), model.spec().name, {.folder = order.folder, .save_id = order.save_id});
  }
  if (request.kind != CheckpointRequest::Kind::kPath) {
    return absl::InvalidArgumentError(absl::StrCat("restore ", DisplayName(model.spec().name),
                                                   ": want a checkpoint folder that node 0 chose, got ",
                                                   DisplayName(order.folder)));
  }
  ASSIGN_OR_RETURN(const CheckpointChoice choice, ChooseCheckpoint(model.save_dir(), model.spec().name, request));
  RETURN_IF_ERROR(CheckIsSave(choice, model.spec().name, order.save_id));
  return choice;
}

}  // namespace

absl::StatusOr<OrderedRestore> PrepareOrdered(const std::shared_ptr<Model>& model, const RestoreOrder& order) {
  if (model->fingerprint() != order.spec_fingerprint) {
    return absl::FailedPreconditionError(
        absl::StrCat("restore ", DisplayName(model->spec().name), ": the spec differs from node 0's spec"));
  }
  OrderedRestore ordered;
  ASSIGN_OR_RETURN(ordered.choice, FindOrdered(*model, order));
  ASSIGN_OR_RETURN(ordered.restore,
                   ModelRestore::Prepare(model, ordered.choice.path, {.convert_moments = order.convert_moments}));
  if (ordered.restore->manifest().save_id != order.save_id) {
    return absl::FailedPreconditionError(absl::StrCat("restore ", DisplayName(model->spec().name), ": ",
                                                      ordered.choice.path,
                                                      ": the save differs from the one that node 0 chose"));
  }
  if (order.rolls_back() && !order.was_asked_for) RETURN_IF_ERROR(CheckGoesBack(*model, ordered.restore->manifest()));
  return ordered;
}

std::string FollowingRestore::RollbackWhy(const Model& model) const {
  if (order().rolls_back() || !order().creates || model.fresh()) return order().rollback_why;
  return "node 0 has no state of the model, and creates it from a checkpoint";
}

void FollowingRestore::OnGo() {
  absl::MutexLock lock(&mu_);
  may_go_ = true;
  changed_.SignalAll();
}

void FollowingRestore::OnEnd(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (!end_.has_value()) end_ = status;
  StopWrite();
  changed_.SignalAll();
}

void FollowingRestore::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  StopWrite();
  changed_.SignalAll();
}

void FollowingRestore::StopWrite() {
  if (const absl::Status why = GivenUp(); !why.ok()) write_.Stop(why);
}

void FollowingRestore::Report(RestorePhase phase, const absl::Status& status) {
  // If this does not reach node 0, node 0 has lost this node, and with it the restore.
  options_.cluster
      ->TellRestore(
          {.model = options_.model, .what = RestoreReport{.id = order().id, .phase = phase, .status = status}})
      .IgnoreError();
}

void FollowingRestore::TellProgress(const Restorer& restorer) {
  const Restorer::Progress progress = restorer.progress();
  const RestorePartProgress news{.id = order().id, .done_bytes = progress.done_bytes, .all_bytes = progress.all_bytes};
  options_.cluster->TellRestore({.model = options_.model, .what = news}).IgnoreError();
}

void FollowingRestore::TellSums(const checkpoint::ContentHashes& sums) {
  RestoreSums news{.id = order().id};
  const auto tell = [&] {
    options_.cluster->TellRestore({.model = options_.model, .what = news}).IgnoreError();
    news.tensors.clear();
  };
  for (const auto& [key, sum] : sums) {
    news.tensors.push_back({.key = key, .sum = sum.sum, .rows = sum.rows});
    if (news.tensors.size() == kSumsOfMessage) tell();
  }
  if (!news.tensors.empty()) tell();
}

absl::Status FollowingRestore::GivenUp() const {
  if (cancelled_) return absl::CancelledError("the daemon drains");
  if (!end_.has_value() || end_->ok()) return absl::OkStatus();
  return absl::Status(end_->code(), absl::StrCat("node 0: ", end_->message()));
}

absl::Status FollowingRestore::Await(bool for_go) {
  absl::MutexLock lock(&mu_);
  while (true) {
    RETURN_IF_ERROR(GivenUp());
    if (for_go ? may_go_ : end_.has_value()) return absl::OkStatus();
    const absl::Duration left = Until(options_.deadline, options_.clock->Now());
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("restore ", options_.model, ": timed out: no answer from node 0 before its deadline"));
    }
    changed_.WaitUntil(&mu_, After(SteadyNow(), left));
  }
}

absl::Status FollowingRestore::Begin() {
  options_.before_ready();
  {
    // A report that this node is ready is a promise: it is not sent when the restore is given up.
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(GivenUp());
  }
  Report(RestorePhase::kReady);
  return Await(/*for_go=*/true);
}

absl::Status FollowingRestore::LateWriteError() const {
  return absl::DeadlineExceededError(absl::StrCat(
      "restore ", options_.model, ": timed out: this daemon has not written all rows before node 0's deadline"));
}

absl::Status FollowingRestore::Write(Restorer& restorer) {
  return write_.Run(
      restorer, [&] { TellProgress(restorer); }, LateWriteError());
}

absl::Status FollowingRestore::CheckGoesOn() { return write_.CheckGoesOn(LateWriteError()); }

absl::Status FollowingRestore::Conclude(const Restorer& restorer) {
  options_.before_written();
  TellSums(restorer.content());
  Report(RestorePhase::kWritten);
  return Await(/*for_go=*/false);
}

void FollowingRestore::Finish(const absl::Status& status) { Report(RestorePhase::kDone, status); }

}  // namespace paramshard::server
