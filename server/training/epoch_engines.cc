#include "server/training/epoch_engines.h"

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"
#include "server/base/thread.h"
#include "server/data_plane/engines.h"
#include "server/observe/log.h"
#include "server/observe/log_throttle.h"

namespace paramshard::server {
namespace {

// Returns a name that no other epoch of any daemon has.
std::string NameInWorld(const PlacedModel& model, const EpochStart& start) {
  return absl::StrCat(model.name(), "/", start.history_id, "/", start.epoch);
}

}  // namespace

EpochEngines::EpochEngines(const EpochContext& context, EpochState& state, const Topology& topology)
    : context_(context),
      state_(state),
      topology_(topology),
      links_(topology.node(), context.model.world.engines.link_listener) {}

absl::Status EpochEngines::Connect(const EpochStart& start) {
  const PlacedModel& model = context_.model;
  if (topology_.needs_rendezvous()) rendezvous_ = model.world.cluster->MakeRendezvous(model.name(), start.epoch);
  // A link may be cut after the check that connecting begins with.
  if (rendezvous_ != nullptr && links_.listener() != nullptr) {
    ASSIGN_OR_RETURN(watch_, StartThread(absl::StrCat("links of ", model.name()), [this] { WatchLinks(); }));
  }
  const SteadyTime begun_at = state_.Now();
  std::vector<RankMemory> memory;
  for (int rank = 0; rank < model.ranks(); ++rank) {
    const RankSlot& rank_slot = *state_.rank_slots[rank];
    memory.push_back({.arena = context_.state.shards[rank]->memory().planes().data(),
                      .slots = rank_slot.memory().slots.data(),
                      .words = rank_slot.words(),
                      .device = &context_.state.shards[rank]->memory().device()});
  }
  ASSIGN_OR_RETURN(auto engines, ConnectEngines({.model = &model.spec,
                                                 .layout = &model.layout,
                                                 .topology = &topology_,
                                                 .memory = memory,
                                                 .rendezvous = rendezvous_.get(),
                                                 .epoch = NameInWorld(model, start),
                                                 .timeout = model.step_timeout,
                                                 .settings = model.world.engines,
                                                 .abort = &state_.connect_abort,
                                                 .links = &links_,
                                                 .sums_at_commit = model.sums_at_commit,
                                                 .metrics = model.world.metrics}));
  const absl::Duration took = absl::Trunc(absl::FromChrono(state_.Now() - begun_at), absl::Milliseconds(1));
  Log(LogLevel::kDebug, "engines connected",
      {{"model", model.name()},
       {"epoch", absl::StrCat(start.epoch)},
       {"engine", std::string(engines[0]->name())},
       {"took", absl::FormatDuration(took)}});
  {
    absl::MutexLock lock(&mu_);
    engines_ = std::move(engines);
  }
  absl::MutexLock lock(&state_.mu);
  return state_.end.why();
}

// A link that breaks silently would otherwise be noticed only at the step timeout.
void EpochEngines::WatchLinks() {
  LogThrottle unchecked;
  while (true) {
    {
      absl::MutexLock lock(&state_.mu);
      const SteadyTime next = SteadyDeadline(kLinkInterval);
      while (!state_.end.ended() && !state_.work.WaitUntil(&state_.mu, next)) {
      }
      if (state_.end.ended()) return;
    }
    const absl::Status status = links_.Check(kLinkTimeout, &state_.connect_abort);
    if (!links_.bad().empty()) {
      {
        absl::MutexLock lock(&state_.mu);
        state_.End(status);
      }
      return Abort(status);
    }
    // The probe is aborted at the end of the epoch.
    if (status.ok() || !state_.connect_abort.status().ok()) continue;
    if (const std::optional<int64_t> count = unchecked.Pass()) {
      Log(LogLevel::kWarning, "failed to check links",
          {{"model", context_.model.name()}, {"why", std::string(status.message())}}, *count);
    }
  }
}

void EpochEngines::Abort(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  for (const auto& engine : engines_) engine->Abort(why);
}

void EpochEngines::JoinWatch() {
  if (watch_.joinable()) watch_.join();
}

void EpochEngines::Clear() {
  std::vector<std::unique_ptr<Collectives>> engines;
  absl::MutexLock lock(&mu_);
  engines.swap(engines_);
}

// Replicas take the same steps: only what they begin with may differ.
absl::Status EpochEngines::ShareAmaxes(int64_t command_number) {
  ScalingBook& book = context_.state.book;
  std::vector<float> offers = book.Offer();
  if (topology_.spans_daemons() || command_number == 0) {
    RETURN_IF_ERROR(engines_[0]->MaxOverDaemons(command_number, absl::MakeSpan(offers)));
  }
  book.Settle(offers);
  return absl::OkStatus();
}

std::string EpochEngines::name() const {
  absl::MutexLock lock(&mu_);
  return engines_.empty() ? "" : std::string(engines_[0]->name());
}

int64_t EpochEngines::scratch_bytes(int rank) const {
  absl::MutexLock lock(&mu_);
  return engines_.empty() ? 0 : engines_[rank]->scratch_bytes();
}

}  // namespace paramshard::server
