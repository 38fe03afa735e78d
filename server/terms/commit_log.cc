#include "server/terms/commit_log.h"

#include <utility>

namespace paramshard::server {

CommitLog::State CommitLog::state() const {
  absl::MutexLock lock(&mu_);
  return {.numbers = numbers_,
          .last_answer = last_answer_,
          .client_states = client_states_,
          .previous = previous_,
          .reader_data = reader_data_};
}

CommitLog::Numbers CommitLog::numbers() const {
  absl::MutexLock lock(&mu_);
  return numbers_;
}

std::optional<CommitAnswer> CommitLog::last_answer() const {
  absl::MutexLock lock(&mu_);
  return last_answer_;
}

std::string CommitLog::client_state(int rank) const {
  absl::MutexLock lock(&mu_);
  return client_states_[rank];
}

std::string CommitLog::reader_data() const {
  absl::MutexLock lock(&mu_);
  return reader_data_;
}

std::optional<int> CommitLog::previous_node() const {
  absl::MutexLock lock(&mu_);
  return previous_.has_value() ? std::optional(previous_->node) : std::nullopt;
}

CommitAnswer CommitLog::Answer(bool applied, double gradient_norm, int64_t non_finite_count,
                               std::vector<std::string> client_states, std::optional<PreviousStates> previous,
                               std::string reader_data) {
  absl::MutexLock lock(&mu_);
  ++numbers_.commit_number;
  ++(applied ? numbers_.version : numbers_.skipped);
  client_states_ = std::move(client_states);
  previous_ = std::move(previous);
  reader_data_ = std::move(reader_data);
  last_answer_ = {.commit_number = numbers_.commit_number,
                  .version = numbers_.version,
                  .skipped = !applied,
                  .gradient_norm = gradient_norm,
                  .non_finite_count = non_finite_count};
  return *last_answer_;
}

void CommitLog::Restore(State state) {
  absl::MutexLock lock(&mu_);
  const size_t ranks = client_states_.size();
  numbers_ = state.numbers;
  last_answer_ = state.last_answer;
  client_states_ = std::move(state.client_states);
  client_states_.resize(ranks);
  previous_ = std::move(state.previous);
  reader_data_ = std::move(state.reader_data);
}

}  // namespace paramshard::server
