#include "server/store/commit_log.h"

#include <utility>

namespace paramshard::server {

CommitLog::Numbers CommitLog::numbers() const {
  absl::MutexLock lock(&mu_);
  return numbers_;
}

std::optional<v1::CommitResult> CommitLog::last_result() const {
  absl::MutexLock lock(&mu_);
  return last_result_;
}

std::string CommitLog::client_state(int rank) const {
  absl::MutexLock lock(&mu_);
  return client_states_[rank];
}

v1::CommitResult CommitLog::Answer(bool applied, double gradient_norm, int64_t non_finite_count,
                                   std::vector<std::string> client_states) {
  absl::MutexLock lock(&mu_);
  ++numbers_.commit_number;
  ++(applied ? numbers_.version : numbers_.skipped);
  client_states_ = std::move(client_states);
  v1::CommitResult result;
  result.set_commit_number(numbers_.commit_number);
  result.set_version(numbers_.version);
  result.set_skipped(!applied);
  result.set_gradient_norm(gradient_norm);
  result.set_non_finite_count(non_finite_count);
  last_result_ = result;
  return result;
}

void CommitLog::Reset(int64_t commit_number, int64_t version) {
  absl::MutexLock lock(&mu_);
  numbers_ = {.commit_number = commit_number, .version = version, .skipped = 0};
  last_result_.reset();
  for (std::string& state : client_states_) state.clear();
}

}  // namespace paramshard::server
