#include "server/training/epoch_opening.h"

#include <array>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"
#include "server/state/replica_state.h"
#include "server/terms/healing_plan.h"

namespace paramshard::server {
namespace {

// Key that a node puts once it has got the state.
constexpr absl::string_view kHealedKey = "healed";

// Key of what a node's ranks have sent with the last commit.
constexpr absl::string_view kStatesKey = "client states";

// Slowest network on which healing is in time. The step timeout comes on top.
constexpr double kSlowestHealingBytesPerSecond = 50e6;

// A node that heals another one knows its ranks' client states. Servers may have been started again since the last
// commit, and nodes been healed: here all learn them.
absl::Status KeepPreviousStates(const Topology& topology, Rendezvous& rendezvous, absl::Duration timeout,
                                CommitLog& commit_log) {
  CommitLog::State state = commit_log.state();
  RETURN_IF_ERROR(rendezvous.Put(kStatesKey, SerializeClientStates(state.client_states)));
  const int previous = PreviousNode(topology.node(), topology.active());
  ASSIGN_OR_RETURN(const std::string bytes, rendezvous.Get(previous, kStatesKey, timeout));
  ASSIGN_OR_RETURN(std::vector<std::string> states, ParseClientStates(bytes, topology.device_counts()[previous]));
  state.previous = {.node = previous, .client_states = std::move(states)};
  commit_log.Restore(std::move(state));
  return absl::OkStatus();
}

// Returns an error if the trainer exited or disconnected: a closed socket is noticed here before the process's end.
absl::Status GoneOr(const Trainer& trainer, const absl::Status& sent) {
  if (!absl::IsUnavailable(sent) && !absl::IsAborted(sent)) return sent;
  return absl::AbortedError(
      absl::StrCat("rank ", trainer.rank, ": process ", trainer.pid, " exited or disconnected (", sent.message(), ")"));
}

}  // namespace

absl::Status EpochOpening::AllocateRankSlots() {
  const PlacedModel& model = context_.model;
  const wire::WordsCounts counts = RankSlot::CountsOf(model.layout);
  for (int rank = 0; rank < model.ranks(); ++rank) {
    ASSIGN_OR_RETURN(RankSlotMemory memory, RankSlotMemory::Allocate(context_.state.shards[rank]->memory().device(),
                                                                     counts, model.slots_bytes(rank)));
    absl::MutexLock lock(&state_.mu);
    state_.rank_slots[rank]->Take(std::move(memory), counts);
  }
  return absl::OkStatus();
}

absl::Status EpochOpening::Heal() {
  const int self = topology_.node();
  const absl::Duration timeout = HealTimeout();
  const SteadyTime deadline = SteadyDeadline(timeout);
  for (const Healing& healing : start_.healings) {
    if (healing.donor == self) {
      RETURN_IF_ERROR(context_.host.SendState(healing.receiver, engines_.all(), deadline));
    }
    if (healing.receiver != self) continue;
    RETURN_IF_ERROR(context_.host.ReceiveState(start_.history_id, healing.donor, engines_.all(), deadline));
    {
      absl::MutexLock lock(&state_.mu);
      state_.sequence.StartFrom(context_.state.commits.numbers().commit_number);
    }
    RETURN_IF_ERROR(engines_.rendezvous()->Put(kHealedKey, "yes"));
  }
  for (const Healing& healing : start_.healings) {
    if (healing.receiver != self) RETURN_IF_ERROR(AwaitHealed(healing, timeout));
  }
  if (!topology_.has_replicas()) return absl::OkStatus();
  return KeepPreviousStates(topology_, *engines_.rendezvous(), timeout, context_.state.commits);
}

absl::Status EpochOpening::AwaitHealed(const Healing& healing, absl::Duration timeout) const {
  const absl::Status healed = engines_.rendezvous()->Get(healing.receiver, kHealedKey, timeout).status();
  if (!absl::IsDeadlineExceeded(healed)) return healed;
  return absl::UnavailableError(absl::StrCat("healing of node ", healing.receiver, " by node ", healing.donor,
                                             " timed out after ", absl::FormatDuration(timeout), "; attach again"));
}

absl::Duration EpochOpening::HealTimeout() const {
  int64_t bytes = 0;
  for (const auto& shard : context_.state.shards) bytes += shard->extents().bytes().Total();
  // One node may give the state to several nodes, one after the other.
  bytes *= static_cast<int64_t>(start_.healings.size());
  return context_.model.step_timeout + absl::Seconds(static_cast<double>(bytes) / kSlowestHealingBytesPerSecond);
}

// The masters of another daemon may have been imported, or it may not know what this one did to them at the end of the
// last epoch.
absl::Status EpochOpening::EncodeByAmax() {
  ScalingBook& book = context_.state.book;
  if (book.empty()) return absl::OkStatus();
  for (const auto& shard : context_.state.shards) RETURN_IF_ERROR(shard->MeasureAmaxes(book));
  RETURN_IF_ERROR(engines_.ShareAmaxes(0));
  if (context_.journal != nullptr) RETURN_IF_ERROR(context_.journal->Settle(context_.state));
  const Publication::Writing writing(*context_.state.publication, Publication::Hold::kBounded);
  for (const auto& shard : context_.state.shards) RETURN_IF_ERROR(shard->EncodePlanes(book));
  return absl::OkStatus();
}

absl::Status EpochOpening::Greet(const std::vector<Trainer>& trainers) {
  for (int rank = 0; rank < context_.model.ranks(); ++rank) RETURN_IF_ERROR(Greet(rank, trainers[rank]));
  return absl::OkStatus();
}

EpochStartInfo EpochOpening::InfoFor(int rank) const {
  const PlacedModel& model = context_.model;
  const CommitLog& commits = context_.state.commits;
  return {.epoch = start_.epoch,
          .numbers = commits.numbers(),
          .client_state = commits.client_state(rank),
          .last_commit = commits.last_answer(),
          .spec = &model.spec,
          .shard_size = model.layout.ranks(),
          .layout_fingerprint = model.layout_fingerprint,
          .world_size = topology_.world_size(),
          .active_rank = topology_.first_active_rank() + rank,
          .active_world_size = topology_.active_world_size(),
          .group_rank = topology_.GroupRank(rank),
          .client_lands_own_pieces = !engines_.of(rank).lands_own_pieces(),
          .client_lands_own_gradients = engines_.of(rank).sums_at_commit(),
          .gpu_uuid = context_.state.shards[rank]->memory().device().gpu_uuid()};
}

absl::Status EpochOpening::Greet(int rank, const Trainer& trainer) {
  RankSlot& rank_slot = *state_.rank_slots[rank];
  const Memory& planes = context_.state.shards[rank]->memory().planes();
  const EpochStartInfo info = InfoFor(rank);
  if (info.last_commit.has_value()) rank_slot.WriteAnswer(*info.last_commit);
  rank_slot.words().Publish(rank_slot.words().committed(), static_cast<uint32_t>(info.numbers.commit_number));
  wire::CompanionMemory message{.session = trainer.session,
                                .planes_bytes = planes.size_bytes(),
                                .slots_bytes = rank_slot.memory().slots.size_bytes(),
                                .words_bytes = rank_slot.memory().words.size_bytes()};
  const std::array<int, 3> fds{planes.fd(), rank_slot.memory().slots.fd(), rank_slot.memory().words.fd()};
  RETURN_IF_ERROR(GoneOr(trainer, trainer.send_memory(message, fds)));
  {
    absl::MutexLock lock(&state_.mu);
    rank_slot.started = true;
  }
  trainer.on_started(info);
  return absl::OkStatus();
}

}  // namespace paramshard::server
