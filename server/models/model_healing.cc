// Healing: a model gets its state from a replica in another daemon, or gives its state to one.

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread_pool.h"
#include "server/models/model.h"
#include "server/models/replica_transfer.h"
#include "server/observe/log.h"
#include "server/state/replica_state.h"

namespace paramshard::server {
namespace {

// Largest size of the numbers that a replica may send: histories of amaxes make them large.
constexpr uint64_t kMostReplicaStateBytes = uint64_t{1} << 30;

using Engines = Epoch::Options::Engines;

absl::Status CheckInTime(SteadyTime deadline) {
  if (SteadyNow() < deadline) return absl::OkStatus();
  return absl::UnavailableError("healing timed out");
}

// Returns true if the records are of the parameters that the book has, with numbers that an encoding can have.
bool FitBook(const std::vector<ScalingBook::Record>& received, const std::vector<ScalingBook::Record>& own) {
  const auto fits = [](const ScalingBook::Record& a, const ScalingBook::Record& b) {
    const bool same_length =
        !a.history.has_value() || !b.history.has_value() || a.history->amaxes.size() == b.history->amaxes.size();
    return a.unit == b.unit && a.parameter == b.parameter && same_length && a.amax >= 0 && a.scale >= 0;
  };
  return std::equal(received.begin(), received.end(), own.begin(), own.end(), fits);
}

absl::Status SendNumbers(const std::string& numbers, int receiver, Collectives& engine, SteadyTime deadline) {
  const uint64_t size = numbers.size();
  RETURN_IF_ERROR(engine.SendToReplica(
      receiver, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(&size), sizeof(size)), deadline));
  return engine.SendToReplica(
      receiver, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(numbers.data()), numbers.size()), deadline);
}

absl::StatusOr<std::string> ReceiveNumbers(int donor, Collectives& engine, SteadyTime deadline) {
  uint64_t size = 0;
  RETURN_IF_ERROR(
      engine.ReceiveFromReplica(donor, absl::MakeSpan(reinterpret_cast<uint8_t*>(&size), sizeof(size)), deadline));
  if (size > kMostReplicaStateBytes) {
    return absl::DataLossError(
        absl::StrCat("numbers of the replica: want at most ", kMostReplicaStateBytes, " bytes, got ", size));
  }
  std::string numbers(size, '\0');
  RETURN_IF_ERROR(engine.ReceiveFromReplica(
      donor, absl::MakeSpan(reinterpret_cast<uint8_t*>(numbers.data()), numbers.size()), deadline));
  return numbers;
}

}  // namespace

absl::Status Model::CheckMayHeal(const EpochStart& start, const Healing& healing) const {
  const int64_t commit_number = commit_log_.numbers().commit_number;
  if (!StateLoss().ok() || (Untouched() && commit_number == 0)) return absl::OkStatus();
  // A person has given the state up, as it was then.
  const Healing::GivenUp present{.history_id = history_.id.ToString(), .commit_number = commit_number};
  if (healing.gives_up == present) return absl::OkStatus();
  // The state is an old one of this history, from which others have gone on.
  if (start.history_id == history_.id.ToString()) return absl::OkStatus();
  if (Untouched() && start.lineage == history_.lineage.ToString()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("start epoch of ", spec().name,
                                         ": another node is to heal this one, which has the state of commit ",
                                         commit_number, "; attach again"));
}

absl::Status Model::ForkHistory(const EpochStart& start) {
  const HistoryFork& from = *start.fork;
  const absl::StatusOr<HistoryId> id = HistoryId::Parse(start.history_id);
  const absl::StatusOr<HistoryId> parent = HistoryId::Parse(from.history_id);
  const int64_t commit_number = commit_log_.numbers().commit_number;
  const bool is_it =
      from.history_id == history_.id.ToString() || (Untouched() && from.lineage == history_.lineage.ToString());
  if (!id.ok() || !parent.ok() || !is_it || commit_number != from.commit_number) {
    return absl::AbortedError(absl::StrCat("start epoch ", start.epoch, " of ", spec().name, ": want commit ",
                                           from.commit_number, " of history ", from.history_id, ", got ", commit_number,
                                           " of ", history_.id.ToString(),
                                           ": the state was replaced after a person had said that it is right"));
  }
  history_.id = *id;
  history_.lineage = {id->value};
  history_.parent = HistoryParent{.history = *parent, .commit_number = commit_number};
  history_begin_ = commit_number;
  return absl::OkStatus();
}

absl::Status Model::AwaitReplica(absl::string_view why) {
  absl::MutexLock lock(&mu_);
  condition_.AwaitReplica(why);
  if (journal_ == nullptr) return absl::OkStatus();
  return journal_->BeginChange({.kind = ChangeSource::Kind::kReplica, .text = {}});
}

void Model::ReportPrevious(ModelReport& report) const {
  report.previous = commit_log_.previous_node();
  // After an import and a creation no rank has sent client states.
  report.keeps_previous = report.previous.has_value() || (Untouched() && !history_.parent.has_value());
}

absl::Status Model::SendState(int receiver, Engines engines, SteadyTime deadline) {
  const SteadyTime begin = SteadyNow();
  ReplicaState state{.history = {}, .commits = commit_log_.state(), .steps = {}, .scaling = scaling_book_.records()};
  // A node that was in no epoch for some time has sent none: its ranks go on with the client states of this node's
  // ranks.
  const std::optional<PreviousStates> previous = std::exchange(state.commits.previous, std::nullopt);
  if (previous.has_value() && previous->node == receiver) state.commits.client_states = previous->client_states;
  for (const UnitSpec& unit : spec().units) state.steps.resize(state.steps.size() + unit.parameters.size());
  for (const auto& shard : shards_) shard->CollectSteps(absl::MakeSpan(state.steps));
  {
    absl::MutexLock lock(&mu_);
    state.history = history_;
    state.history_begin = history_begin_;
  }
  RETURN_IF_ERROR(SendNumbers(SerializeReplicaState(state), receiver, *engines[0], deadline));
  RETURN_IF_ERROR(
      OnAllRanks(absl::StrCat("a replica of ", spec().name), static_cast<int>(shards_.size()), [&](int rank) {
        return SendTensors(*shards_[rank], [&](absl::Span<const uint8_t> bytes) -> absl::Status {
          RETURN_IF_ERROR(CheckInTime(deadline));
          return engines[rank]->SendToReplica(receiver, bytes, deadline);
        });
      }));
  LogHealing("state sent to a node that had lost it", receiver, begin);
  return absl::OkStatus();
}

absl::Status Model::ReceiveState(const std::string& history_id, int donor, Engines engines, SteadyTime deadline) {
  const SteadyTime begin = SteadyNow();
  std::atomic<int64_t> done_bytes = 0;
  int64_t all_bytes = 0;
  for (const auto& shard : shards_) all_bytes += TensorBytes(*shard);
  int64_t parameters = 0;
  for (const UnitSpec& unit : spec().units) parameters += static_cast<int64_t>(unit.parameters.size());
  ASSIGN_OR_RETURN(const std::string numbers, ReceiveNumbers(donor, *engines[0], deadline));
  ASSIGN_OR_RETURN(const ReplicaState state, ParseReplicaState(numbers, parameters, static_cast<int>(shards_.size())));
  if (state.history.id.ToString() != history_id || !FitBook(state.scaling, scaling_book_.records())) {
    return absl::UnavailableError(absl::StrCat("heal ", spec().name, ": want the state of history ", history_id,
                                               " from node ", donor, ", got history ", state.history.id.ToString(),
                                               ", or other amaxes; attach again"));
  }
  const auto make = [&](const PresentState& present) -> absl::StatusOr<Replacement> {
    return Replacement::OfReplica(state, present);
  };
  const auto receive = [&](int rank) {
    const auto move = [&](absl::Span<uint8_t> bytes) -> absl::Status {
      RETURN_IF_ERROR(CheckInTime(deadline));
      return engines[rank]->ReceiveFromReplica(donor, bytes, deadline);
    };
    RETURN_IF_ERROR(ReceiveTensors(*shards_[rank], move, [&](int64_t bytes) { done_bytes += bytes; }));
    shards_[rank]->SetSteps(state.steps);
    return absl::OkStatus();
  };
  absl::Status received;
  const auto write = [&] {
    return received = OnAllRanks(absl::StrCat("a replica of ", spec().name), static_cast<int>(shards_.size()), receive);
  };
  const RestoreWatch watch{
      .progress = [&] { return RestoreProgress{.done_bytes = done_bytes, .all_bytes = all_bytes}; },
      .cancel = [] {}};  // the end of the epoch ends it
  LogGivenUp(donor);
  const absl::Status replaced = Replace(ChangeKind::kHealing, make, write, watch, {}).status();
  // A lost donor and damaged bytes do not end this daemon's trainers: they attach again.
  if (absl::IsDataLoss(received)) {
    return absl::UnavailableError(absl::StrCat("heal ", spec().name, ": ", received.message(), "; attach again"));
  }
  RETURN_IF_ERROR(received);
  RETURN_IF_ERROR(replaced);
  world().metrics->Observe(Metric::kHeal, SteadyNow() - begin);
  LogHealing("state received from a replica", donor, begin);
  return absl::OkStatus();
}

void Model::LogGivenUp(int donor) const {
  absl::MutexLock lock(&mu_);
  if (!StateLoss().ok() || Fresh()) return;
  options_.log->Write(LogLevel::kWarning, "state is replaced by a replica",
                      {{"model", spec().name},
                       {"node", absl::StrCat(donor)},
                       {"history", history_.id.ToString()},
                       {"commit", absl::StrCat(commit_log_.numbers().commit_number)}});
}

void Model::LogHealing(absl::string_view what, int node, SteadyTime begin) const {
  int64_t bytes = 0;
  for (const auto& shard : shards_) bytes += TensorBytes(*shard);
  options_.log->Write(
      LogLevel::kInfo, what,
      {{"model", spec().name},
       {"node", absl::StrCat(node)},
       {"commit", absl::StrCat(commit_log_.numbers().commit_number)},
       {"bytes", absl::StrCat(bytes)},
       {"took", absl::FormatDuration(absl::Trunc(absl::FromChrono(SteadyNow() - begin), absl::Milliseconds(1)))}});
}

}  // namespace paramshard::server
