#include "server/training/step_ends.h"

#include <algorithm>
#include <utility>

namespace paramshard::server {

StepEnd& StepEnds::Add(int rank, SentCommand sent, std::vector<int64_t> slot_users, SteadyTime now) {
  const int64_t index = sent_[rank]++ - first_;
  if (index == static_cast<int64_t>(ends_.size())) {
    StepEnd& added = ends_.emplace_back();
    added.command = sent.command;
    added.unnumbered = std::move(sent.unnumbered);
    added.first_rank = rank;
    added.first_arrival = now;
    added.numbers.resize(ranks_);
    added.slot_users.resize(ranks_);
    added.client_states.resize(ranks_);
    added.bytes.resize(ranks_);
  }
  StepEnd& end = ends_[index];
  ++end.arrived;
  end.agreed_at = now;
  end.numbers[rank] = sent.command.number();
  end.slot_users[rank] = std::move(slot_users);
  end.bytes[rank] = sent.canonical.size() + sent.client_state.size();
  end.client_states[rank] = std::move(sent.client_state);
  if (end.is_commit()) ++commits_sent_[rank];
  return end;
}

void StepEnds::Finish(int rank, SteadyTime now) {
  StepEnd& end = At(done_[rank]++);
  ++end.finished;
  if (end.is_commit()) ++commits_done_[rank];
  while (!ends_.empty() && ends_.front().finished == ranks_) {
    if (ends_.front().is_commit()) {
      ++commits_answered_;
      answered_at_ = now;
    }
    ends_.pop_front();
    ++first_;
  }
}

const StepEnd* StepEnds::FirstMissing() const {
  const auto missing = std::find_if(ends_.begin(), ends_.end(), [&](const StepEnd& end) { return !IsAgreed(end); });
  return missing == ends_.end() ? nullptr : &*missing;
}

int64_t StepEnds::LastCommitInFlight() const {
  int64_t commit = commits_answered_;
  int64_t last = 0;
  for (const StepEnd& end : ends_) {
    if (!end.is_commit()) continue;
    ++commit;
    if (IsAgreed(end)) last = commit;
  }
  return last;
}

StepEnd& StepEnds::FirstCommit() {
  return *std::find_if(ends_.begin(), ends_.end(), [](const StepEnd& end) { return end.is_commit(); });
}

size_t StepEnds::bytes(int rank) const {
  size_t bytes = 0;
  for (const StepEnd& end : ends_) bytes += end.bytes[rank];
  return bytes;
}

bool StepEnds::IsOneThrough(int rank, int64_t number) const {
  return std::any_of(ends_.begin(), ends_.end(),
                     [&](const StepEnd& end) { return end.numbers[rank] > 0 && end.numbers[rank] <= number; });
}

}  // namespace paramshard::server
