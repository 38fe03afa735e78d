#include "server/state/replica_state.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/model/limits.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/cluster.pb.h"

namespace paramshard::server {
namespace {

v1::SaveNumber NumberMessage(absl::uint128 number) {
  v1::SaveNumber message;
  message.set_high(absl::Uint128High64(number));
  message.set_low(absl::Uint128Low64(number));
  return message;
}

absl::uint128 NumberOf(const v1::SaveNumber& message) { return absl::MakeUint128(message.high(), message.low()); }

v1::ReplicaState::ScalingRecord ScalingMessage(const ScalingBook::Record& record) {
  v1::ReplicaState::ScalingRecord message;
  message.set_unit(record.unit);
  message.set_parameter(record.parameter);
  message.set_amax(record.amax);
  message.set_scale(record.scale);
  message.set_is_fresh(record.is_fresh);
  if (record.history.has_value()) {
    message.mutable_history()->set_next_scale(record.history->scale);
    message.mutable_history()->mutable_amaxes()->Assign(record.history->amaxes.begin(), record.history->amaxes.end());
  }
  return message;
}

ScalingBook::Record ScalingOf(const v1::ReplicaState::ScalingRecord& message) {
  ScalingBook::Record record{.unit = message.unit(),
                             .parameter = message.parameter(),
                             .amax = message.amax(),
                             .scale = message.scale(),
                             .is_fresh = message.is_fresh()};
  if (message.has_history()) {
    const auto& amaxes = message.history().amaxes();
    record.history = {.scale = message.history().next_scale(), .amaxes = {amaxes.begin(), amaxes.end()}};
  }
  return record;
}

void AddCommits(const CommitLog::State& commits, v1::ReplicaState& message) {
  message.set_commit_number(commits.numbers.commit_number);
  message.set_version(commits.numbers.version);
  message.set_skipped(commits.numbers.skipped);
  if (const auto& answer = commits.last_answer; answer.has_value()) {
    message.mutable_last_answer()->set_skipped(answer->skipped);
    message.mutable_last_answer()->set_gradient_norm(answer->gradient_norm);
    message.mutable_last_answer()->set_non_finite_count(answer->non_finite_count);
  }
  message.mutable_client_states()->Assign(commits.client_states.begin(), commits.client_states.end());
  message.set_reader_data(commits.reader_data);
}

CommitLog::State CommitsOf(const v1::ReplicaState& message) {
  CommitLog::State commits{.numbers = {.commit_number = message.commit_number(),
                                       .version = message.version(),
                                       .skipped = message.skipped()}};
  if (message.has_last_answer()) {
    const v1::ReplicaState::LastAnswer& answer = message.last_answer();
    commits.last_answer = CommitAnswer{.commit_number = message.commit_number(),
                                       .version = message.version(),
                                       .skipped = answer.skipped(),
                                       .gradient_norm = answer.gradient_norm(),
                                       .non_finite_count = answer.non_finite_count()};
  }
  commits.client_states.assign(message.client_states().begin(), message.client_states().end());
  commits.reader_data = message.reader_data();
  return commits;
}

bool FitTogether(const ReplicaState& state) {
  const CommitLog::Numbers& numbers = state.commits.numbers;
  for (const int64_t steps : state.steps) {
    if (steps < 0 || steps >= kNumberLimit) return false;
  }
  return state.commits.reader_data.size() <= kMaxReaderDataBytes && numbers.version >= 0 && numbers.skipped >= 0 &&
         numbers.commit_number >= numbers.version && numbers.commit_number < kNumberLimit && state.history_begin >= 0 &&
         state.history_begin <= numbers.commit_number;
}

}  // namespace

std::string SerializeClientStates(const std::vector<std::string>& states) {
  v1::ClientStates message;
  message.mutable_states()->Assign(states.begin(), states.end());
  return message.SerializeAsString();
}

absl::StatusOr<std::vector<std::string>> ParseClientStates(absl::string_view bytes, int ranks) {
  v1::ClientStates message;
  const bool is_read = message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  const auto& states = message.states();
  const bool fits = std::all_of(states.begin(), states.end(),
                                [](const std::string& state) { return state.size() <= kMaxClientStateBytes; });
  if (is_read && fits && states.size() == ranks) return std::vector<std::string>(states.begin(), states.end());
  return absl::InternalError(absl::StrCat("client states from another daemon: want ", ranks, " of at most ",
                                          kMaxClientStateBytes, " bytes, got ", states.size()));
}

std::string SerializeReplicaState(const ReplicaState& state) {
  v1::ReplicaState message;
  AddCommits(state.commits, message);
  message.mutable_steps()->Assign(state.steps.begin(), state.steps.end());
  for (const ScalingBook::Record& record : state.scaling) *message.add_scaling() = ScalingMessage(record);
  *message.mutable_history_id() = NumberMessage(state.history.id.value);
  *message.mutable_lineage() = NumberMessage(state.history.lineage.value);
  if (const auto& parent = state.history.parent; parent.has_value()) {
    *message.mutable_parent_history_id() = NumberMessage(parent->history.value);
    message.set_parent_commit_number(parent->commit_number);
  }
  message.set_history_begin(state.history_begin);
  return message.SerializeAsString();
}

absl::StatusOr<ReplicaState> ParseReplicaState(absl::string_view bytes, int64_t parameters, int ranks) {
  v1::ReplicaState message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || message.steps_size() != parameters ||
      message.client_states_size() != ranks) {
    return absl::DataLossError("the replica state belongs to another model");
  }
  ReplicaState state{.history = {.id = {NumberOf(message.history_id())}, .lineage = {NumberOf(message.lineage())}},
                     .history_begin = message.history_begin(),
                     .commits = CommitsOf(message),
                     .steps = {message.steps().begin(), message.steps().end()}};
  if (message.has_parent_history_id()) {
    state.history.parent = {.history = {NumberOf(message.parent_history_id())},
                            .commit_number = message.parent_commit_number()};
  }
  for (const auto& record : message.scaling()) state.scaling.push_back(ScalingOf(record));
  if (FitTogether(state)) return state;
  return absl::DataLossError("the replica state contradicts itself");
}

}  // namespace paramshard::server
