#include "server/training/epoch_state.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/training/event_notes.h"

namespace paramshard::server {
namespace {

Sequence::Options SequenceOptions(const EpochContext& context) {
  const PlacedModel& model = context.model;
  return {.spec = &model.spec,
          .layout = &model.layout,
          .ranks = model.ranks(),
          .first_rank = model.world.first_rank,
          .commit_number = context.state.commits.numbers().commit_number,
          .step_timeout = model.step_timeout,
          .may_save = context.host.may_save(),
          .equal_commands = !model.topology.may_sum_at_commit(),
          .gathers_together = model.topology.group_has_mesh(),
          .chains_commands = model.world.cluster->nodes() > 1};
}

}  // namespace

EpochState::EpochState(const EpochContext& context, int64_t epoch)
    : recorder(std::make_shared<Recorder>(epoch, context.model.ranks(), context.model.world.first_rank)),
      sequence(SequenceOptions(context), this),
      commit(context.model.ranks()),
      context_(context),
      ranks_(context.model.ranks()) {
  for (int rank = 0; rank < ranks_; ++rank) {
    rank_slots.push_back(std::make_unique<RankSlot>(context.model.world.first_rank + rank));
  }
}

// Called by the sequence, under the mutex. A trainer that has left reads nothing any more.
uint32_t EpochState::Released(int rank, int slot) const {
  if (rank_slots[rank]->left) return static_cast<uint32_t>(*rank_slots[rank]->last_command);
  return rank_slots[rank]->words().released(slot).value.load(std::memory_order_acquire);
}

uint32_t EpochState::Filled(int rank, int slot) const {
  return rank_slots[rank]->words().filled(slot).value.load(std::memory_order_acquire);
}

bool EpochState::ended() const {
  absl::MutexLock lock(&mu);
  return end.ended();
}

void EpochState::Take(int rank, SentCommand command) {
  const Event event = EventOf(EventKind::kCommand, EventEdge::kInstant, command.command);
  if (const absl::Status status = sequence.Submit(rank, std::move(command), Now()); !status.ok()) return End(status);
  Note(recorder->of(rank).commands, event);
}

void EpochState::WakeRunnable() {
  CheckDepartures();
  bool may_push = end.ended();
  for (int rank = 0; rank < ranks_; ++rank) {
    const bool may_send = rank_slots[rank]->held_back && sequence.Room(rank) > 0;
    if (may_send || sequence.IsGatherRunnable(rank)) rank_slots[rank]->Call();
    may_push = may_push || sequence.IsPushRunnable(rank);
  }
  if (may_push) work.SignalAll();
}

void EpochState::WakeAll() {
  work.SignalAll();
  for (const auto& rank_slot : rank_slots) rank_slot->Call();
}

void EpochState::End(const absl::Status& why) {
  if (end.End(why)) sequence.Stop();
  // The thread that would do so may be in an engine itself, before the others begin, or probe a link.
  connect_abort.Abort(why);
  WakeAll();
}

void EpochState::EndOnError(const absl::Status& status) {
  if (status.ok()) return;
  const bool lost = absl::IsUnavailable(status) && context_.model.world.cluster->nodes() > 1;
  if (!lost && !absl::IsAborted(status)) {
    if (!end.ended()) End(status);
  } else if (end.EndUntilKnown(status)) {
    sequence.Stop();
    connect_abort.Abort(status);
    WakeAll();
  }
}

bool EpochState::EndAfterCommits(const absl::Status& why) {
  if (end.ended()) return false;
  last_commit_ = {.commit = sequence.LastCommitInFlight(), .why = why};
  return LastCommitAnswered();
}

bool EpochState::LastCommitAnswered() const {
  return last_commit_.has_value() && sequence.Answered(last_commit_->commit) && !commit.answering();
}

void EpochState::FinishAnswer() {
  commit.EndAnswer();
  CheckDepartures();
  if (LastCommitAnswered()) End(last_commit_->why);
  work.SignalAll();
}

// --- Departures

absl::Status EpochState::Detach(int rank, int64_t command_count) {
  absl::MutexLock lock(&mu);
  if (end.ended()) return absl::OkStatus();
  RankSlot& rank_slot = *rank_slots[rank];
  const std::string what = absl::StrCat("detach rank ", rank_slot.rank(), ": ");
  if (!rank_slot.started) return absl::FailedPreconditionError(what + "sent before `started`");
  if (rank_slot.last_command.has_value()) return absl::InvalidArgumentError(what + "already detached");
  if (command_count < sequence.last_command(rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "want at least ", sequence.last_command(rank), " commands, got ", command_count));
  }
  rank_slot.last_command = command_count;
  CheckDepartures();
  return absl::OkStatus();
}

void EpochState::SetLastPoint(int64_t point) {
  absl::MutexLock lock(&mu);
  last_point_ = std::min(point, last_point_.value_or(point));
  CheckDepartures();
}

void EpochState::CheckDepartures() {
  const bool update = last_point_.has_value() && ProgressNow() != told_progress_;
  for (int rank = 0; rank < ranks_; ++rank) {
    RankSlot& rank_slot = *rank_slots[rank];
    if (!rank_slot.last_command.has_value() || rank_slot.left || end.ended()) continue;
    // It is absent from later pushes of the other ranks.
    if (sequence.last_command(rank) >= *rank_slot.last_command) sequence.Close(rank);
    if (commit.answering()) continue;
    rank_slot.left = sequence.Served(rank, *rank_slot.last_command);
    // Gathers into its slots do not wait for it any more.
    if (rank_slot.left) WakeAll();
  }
  if (update) work.SignalAll();
}

DepartureUpdate EpochState::AwaitDepartureUpdate() {
  DepartureUpdate update;
  absl::MutexLock lock(&mu);
  while (!end.ended() && (update = TakeDepartureUpdate()).empty()) work.Wait(&mu);
  return update;
}

DepartureUpdate EpochState::TakeDepartureUpdate() {
  DepartureUpdate update;
  for (int rank = 0; rank < ranks_ && !update.leaving.has_value(); ++rank) {
    if (rank_slots[rank]->left && !std::exchange(rank_slots[rank]->told, true)) update.leaving = rank;
  }
  if (const std::optional<EpochProgress> now = ProgressNow(); now != told_progress_)
    told_progress_ = update.progress = now;
  return update;
}

std::optional<EpochProgress> EpochState::ProgressNow() const {
  const bool done = last_point_.has_value() && sequence.CarriedOut(*last_point_) && !commit.answering();
  if (!done) return std::nullopt;
  EpochProgress progress{.point = *last_point_};
  for (int rank = 0; rank < ranks_; ++rank) {
    progress.more = progress.more || sequence.LastPoint(rank) > progress.point;
  }
  return progress;
}

}  // namespace paramshard::server
