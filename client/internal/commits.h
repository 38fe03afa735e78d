// A session's commits: their numbers and their answers.
#ifndef PARAMSHARD_CLIENT_INTERNAL_COMMITS_H_
#define PARAMSHARD_CLIENT_INTERNAL_COMMITS_H_

#include <cstdint>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/internal/attachment.h"

namespace paramshard::internal {

// See Model and PendingCommit for the errors. Used by one thread at a time.
class Commits {
 public:
  explicit Commits(const Attachment& attached);

  // Sends a commit and returns its number. Waits for the oldest answer when three are unanswered.
  absl::StatusOr<int64_t> Send(const CommitOptions& options);
  // Waits for an answer; answers from before the end of the epoch stay available.
  absl::StatusOr<StepResult> Await(int64_t commit_number);
  bool IsReady(int64_t commit_number) const;

  // The last commit sent, or answered before this epoch.
  int64_t last() const { return last_; }
  // The last commit sent in this epoch: later commands read what it writes. 0 when there was none.
  int64_t last_in_epoch() const { return last_ > attached_.started.commit_number() ? last_ : 0; }

  // The last commit that is known to be answered, before this epoch or in it; also after its end.
  int64_t last_answered() const;

  // The answer of the last commit before this epoch.
  std::optional<StepResult> last_result() const;

 private:
  absl::StatusOr<int64_t> ChooseNumber(const CommitOptions& options) const;
  // Waits for a commit's answer and keeps it: its record is used again four commits later.
  absl::Status KeepAnswer(int64_t commit_number);

  const Attachment attached_;
  int64_t last_;
  std::map<int64_t, StepResult> answers_;  // of the newest commits that were waited for
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_COMMITS_H_
