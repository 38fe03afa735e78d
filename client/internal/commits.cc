#include "client/internal/commits.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/internal/commit_command.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
namespace {

// One record of the page is always free for the daemon to write.
constexpr int64_t kInFlight = wire::kCommitRecords - 1;
constexpr size_t kKeptAnswers = 64;

StepResult FromProto(const v1::CommitResult& result) {
  return {.commit_number = result.commit_number(),
          .version = result.version(),
          .skipped = result.skipped(),
          .gradient_norm = result.gradient_norm(),
          .non_finite_count = result.non_finite_count()};
}

StepResult FromRecord(const wire::CommitRecord& record) {
  return {.commit_number = record.commit_number,
          .version = record.version,
          .skipped = record.skipped != 0,
          .gradient_norm = record.gradient_norm,
          .non_finite_count = record.non_finite_count};
}

}  // namespace

Commits::Commits(const Attachment& attached) : attached_(attached), last_(attached.started.commit_number()) {}

absl::StatusOr<int64_t> Commits::ChooseNumber(const CommitOptions& options) const {
  const int64_t number = options.commit_number.value_or(last_ + 1);
  if (number == last_ + 1 || (number == last_ && number > 0)) return number;
  return absl::FailedPreconditionError(
      absl::StrCat("commit: want number ", last_ + 1, " (or ", last_, " again), got ", number));
}

absl::StatusOr<int64_t> Commits::Send(const CommitOptions& options) {
  ASSIGN_OR_RETURN(const int64_t number, ChooseNumber(options));
  const int group_count = std::max<int>(1, static_cast<int>(attached_.layout.spec().groups.size()));
  v1::Command command;
  ASSIGN_OR_RETURN(*command.mutable_commit(), MakeCommit(options, group_count, number));
  if (number - kInFlight > attached_.started.commit_number()) RETURN_IF_ERROR(KeepAnswer(number - kInFlight));
  RETURN_IF_ERROR(attached_.page.Send(std::move(command)).status());
  return last_ = number;
}

absl::Status Commits::KeepAnswer(int64_t commit_number) {
  if (answers_.contains(commit_number)) return absl::OkStatus();
  RETURN_IF_ERROR(attached_.page.AwaitAnswer(commit_number));
  const StepResult result = FromRecord(attached_.page.words().commit_record(commit_number));
  if (result.commit_number != commit_number) {
    return absl::FailedPreconditionError(
        absl::StrCat("commit ", commit_number, ": want its answer, got the answer of commit ", result.commit_number));
  }
  answers_.emplace(commit_number, result);
  if (answers_.size() > kKeptAnswers) answers_.erase(answers_.begin());
  return absl::OkStatus();
}

absl::StatusOr<StepResult> Commits::Await(int64_t commit_number) {
  RETURN_IF_ERROR(attached_.page.CheckProcess());
  if (const std::optional<StepResult> before = last_result();
      before.has_value() && commit_number == attached_.started.commit_number()) {
    return *before;
  }
  RETURN_IF_ERROR(KeepAnswer(commit_number));
  return answers_.at(commit_number);
}

bool Commits::IsReady(int64_t commit_number) const {
  if (!attached_.page.status().ok() || answers_.contains(commit_number)) return true;
  return attached_.page.Answered(commit_number);
}

int64_t Commits::last_answered() const {
  int64_t number = last_;
  while (number > attached_.started.commit_number() && !attached_.page.Answered(number)) --number;
  return number;
}

std::optional<StepResult> Commits::last_result() const {
  if (!attached_.started.has_last_commit()) return std::nullopt;
  return FromProto(attached_.started.last_commit());
}

}  // namespace paramshard::internal
