#include "server/models/replica_healing.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread_pool.h"
#include "server/models/replica_transfer.h"
#include "server/observe/log.h"
#include "server/state/replica_state.h"

namespace paramshard::server {
namespace {

// Largest size of the numbers that a replica may send: histories of amaxes make them large.
constexpr uint64_t kMostReplicaStateBytes = uint64_t{1} << 30;

using Engines = EpochHost::Engines;

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
        absl::StrCat("replica state: want at most ", kMostReplicaStateBytes, " bytes, got ", size));
  }
  std::string numbers(size, '\0');
  RETURN_IF_ERROR(engine.ReceiveFromReplica(
      donor, absl::MakeSpan(reinterpret_cast<uint8_t*>(numbers.data()), numbers.size()), deadline));
  return numbers;
}

}  // namespace

int64_t ReplicaHealing::bytes() const {
  int64_t bytes = 0;
  for (const auto& shard : committed_.shards) bytes += TensorBytes(*shard);
  return bytes;
}

int64_t ReplicaHealing::parameters() const {
  int64_t parameters = 0;
  for (const UnitSpec& unit : model_.spec.units) parameters += static_cast<int64_t>(unit.parameters.size());
  return parameters;
}

absl::Status ReplicaHealing::Send(int receiver, Engines engines, SteadyTime deadline) {
  const SteadyTime begin = SteadyNow();
  const std::vector<std::unique_ptr<Shard>>& shards = committed_.shards;
  ReplicaState state{.history = {},
                     .commits = committed_.commits.state(),
                     .steps = committed_.Steps(parameters()),
                     .scaling = committed_.book.records()};
  // A node that was in no epoch for some time has sent none: its ranks go on with the client states of this node's
  // ranks.
  const std::optional<PreviousStates> previous = std::exchange(state.commits.previous, std::nullopt);
  if (previous.has_value() && previous->node == receiver) state.commits.client_states = previous->client_states;
  std::tie(state.history, state.history_begin) = state_.history_and_begin();
  RETURN_IF_ERROR(SendNumbers(SerializeReplicaState(state), receiver, *engines[0], deadline));
  RETURN_IF_ERROR(OnAllRanks(absl::StrCat("a replica of ", model_.name()), model_.ranks(), [&](int rank) {
    return SendTensors(*shards[rank], [&](absl::Span<const uint8_t> bytes) -> absl::Status {
      RETURN_IF_ERROR(CheckInTime(deadline));
      return engines[rank]->SendToReplica(receiver, bytes, deadline);
    });
  }));
  LogHealing("state sent to a node that had lost it", receiver, begin);
  return absl::OkStatus();
}

absl::Status ReplicaHealing::Receive(const std::string& history_id, int donor, Engines engines, SteadyTime deadline) {
  const SteadyTime begin = SteadyNow();
  const std::vector<std::unique_ptr<Shard>>& shards = committed_.shards;
  const std::string& name = model_.name();
  ASSIGN_OR_RETURN(const std::string numbers, ReceiveNumbers(donor, *engines[0], deadline));
  ASSIGN_OR_RETURN(const ReplicaState state, ParseReplicaState(numbers, parameters(), model_.ranks()));
  if (state.history.id.ToString() != history_id || !FitBook(state.scaling, committed_.book.records())) {
    return absl::UnavailableError(absl::StrCat("heal ", name, ": want the state of history ", history_id, " from node ",
                                               donor, ", got history ", state.history.id.ToString(),
                                               ", or other amaxes; attach again"));
  }
  std::atomic<int64_t> done_bytes = 0;
  const auto receive = [&](int rank) {
    const auto move = [&](absl::Span<uint8_t> bytes) -> absl::Status {
      RETURN_IF_ERROR(CheckInTime(deadline));
      return engines[rank]->ReceiveFromReplica(donor, bytes, deadline);
    };
    RETURN_IF_ERROR(ReceiveTensors(*shards[rank], move, [&](int64_t bytes) { done_bytes += bytes; }));
    shards[rank]->SetSteps(state.steps);
    return absl::OkStatus();
  };
  absl::Status received;
  const auto write = [&] {
    return received = OnAllRanks(absl::StrCat("a replica of ", name), model_.ranks(), receive);
  };
  const RestoreWatch watch{
      .progress = [&, all = bytes()] { return RestoreProgress{.done_bytes = done_bytes, .all_bytes = all}; },
      .cancel = [] {}};  // the end of the epoch ends it
  LogReplaced(donor);
  const absl::Status replaced = changes_.Heal(state, write, watch).status();
  // A lost donor and damaged bytes do not end this daemon's trainers: they attach again.
  if (absl::IsDataLoss(received)) {
    return absl::UnavailableError(absl::StrCat("heal ", name, ": ", received.message(), "; attach again"));
  }
  RETURN_IF_ERROR(received);
  RETURN_IF_ERROR(replaced);
  model_.world.metrics->Observe(Metric::kHeal, SteadyNow() - begin);
  LogHealing("state received from a replica", donor, begin);
  return absl::OkStatus();
}

void ReplicaHealing::LogReplaced(int donor) const {
  if (!state_.loss().ok() || state_.fresh()) return;
  const StateNumbers numbers = state_.snapshot().numbers;
  model_.log->Write(LogLevel::kWarning, "state is replaced by a replica",
                    {{"model", model_.name()},
                     {"node", absl::StrCat(donor)},
                     {"history", numbers.history.ToString()},
                     {"commit", absl::StrCat(numbers.commit_number)}});
}

void ReplicaHealing::LogHealing(absl::string_view what, int node, SteadyTime begin) const {
  model_.log->Write(
      LogLevel::kInfo, what,
      {{"model", model_.name()},
       {"node", absl::StrCat(node)},
       {"commit", absl::StrCat(committed_.commits.numbers().commit_number)},
       {"bytes", absl::StrCat(bytes())},
       {"took", absl::FormatDuration(absl::Trunc(absl::FromChrono(SteadyNow() - begin), absl::Milliseconds(1)))}});
}

}  // namespace paramshard::server
