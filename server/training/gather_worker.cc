#include "server/training/gather_worker.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/model/proto_enums.h"
#include "server/training/adaptive_waiter.h"
#include "server/training/event_notes.h"
#include "server/training/spinning_mutex_lock.h"

namespace paramshard::server {
namespace {

// Largest number of commands read from a ring at once: a trainer that never stops writing holds up only itself.
constexpr int kMostCommandsAtOnce = 64;
constexpr std::chrono::microseconds kLateRanksEvery{20};

}  // namespace

void GatherWorker::Run(int rank) {
  RankSlot& rank_slot = *state_.rank_slots[rank];
  EventRing& notes = state_.recorder->of(rank).gathers;
  const bool on_gpu = !context_.state.shards[rank]->memory().device().gpu_uuid().empty();
  AdaptiveWaiter waiter(
      {.words = rank_slot.words(), .wakeup = &rank_slot.wakeup(), .clock = context_.model.clock, .on_gpu = on_gpu});
  AllUnderWay under_way(context_.model.ranks());
  std::deque<Own> own;
  int64_t known = 0;  // the last command
  int room = kMostCommandsAtOnce;
  Sequence::Holder noted;
  const auto is_busy = [&] {
    return std::any_of(under_way.begin(), under_way.end(), [](const auto& gathers) { return !gathers.empty(); });
  };
  while (true) {
    waiter.PrepareWait();
    if (Finish(rank, under_way)) waiter.NoteEvent();
    absl::StatusOr<std::vector<SentCommand>> commands = rank_slot.ReadCommands(room);
    const bool more = commands.ok() && static_cast<int>(commands->size()) == room;
    std::optional<Sequence::GatherWork> work;
    std::vector<Own> served;
    SteadyTime deadline;
    auto expected = AdaptiveWaiter::For::kNothing;
    {
      SpinningMutexLock lock(&state_.mu);
      if (state_.end.ended() && !is_busy()) return;
      // A thread that looks again and again without sleeping counts late ranks only now and then: others wait for that.
      const bool is_event = !on_gpu || !commands.ok() || !commands->empty();
      TakeAll(rank, std::move(commands));
      const SteadyTime now = state_.Now();
      if (is_event || now - late_since_ >= kLateRanksEvery) CountLateRanks(now);
      Sequence& sequence = state_.sequence;
      sequence.Look(now);
      work = sequence.BeginGather(rank, now);
      served = TakeServed(rank, own);
      state_.WakeRunnable();
      if (!work.has_value()) deadline = CheckDeadlines();
      if (!work.has_value()) NoteHolder(notes, sequence.GatherHolder(rank), noted);
      if (sequence.Pending(rank)) expected = AdaptiveWaiter::For::kWord;
      if (std::exchange(known, sequence.last_command(rank)) != known) waiter.NoteEvent();
      room = std::min(kMostCommandsAtOnce, sequence.Room(rank));
      rank_slot.held_back = room == 0;
    }
    for (const Own& gather : served) {
      context_.model.world.metrics->Observe(Metric::kGather, state_.Now() - gather.begun_at);
      Note(notes, {.kind = EventKind::kGather,
                   .edge = EventEdge::kEnd,
                   .unit = gather.call.unit,
                   .command = gather.call.number});
    }
    if (work.has_value()) {
      if (work->target == rank) own.push_back({.call = CallOf(*work), .begun_at = state_.Now()});
      under_way[work->target].push_back(Begin(rank, *work));
      waiter.NoteEvent();
    } else if (!more || room == 0) {
      waiter.Wait(is_busy() ? AdaptiveWaiter::For::kCopies : expected, deadline);
    }
  }
}

void GatherWorker::CountLateRanks(SteadyTime now) {
  const SteadyTime::duration since = now - std::exchange(late_since_, now);
  for (int rank = 0; rank < context_.model.ranks(); ++rank) {
    if (late_ranks_[rank]) context_.model.world.metrics->AddRankWait(rank, since);
  }
  state_.sequence.FindLateRanks(late_ranks_);
}

SteadyTime GatherWorker::CheckDeadlines() {
  const SteadyTime now = state_.Now();
  const SteadyTime deadline = std::min(state_.sequence.NextDeadline(), state_.commit.vote_deadline());
  if (now < deadline) return deadline;
  if (const absl::Status overdue = Overdue(now); !overdue.ok()) state_.End(overdue);
  return deadline;
}

absl::Status GatherWorker::Overdue(SteadyTime now) const {
  if (now < state_.commit.vote_deadline()) return state_.sequence.Overdue(now);
  return absl::DeadlineExceededError(absl::StrCat("commit ", context_.state.commits.numbers().commit_number + 1,
                                                  ": the trainers of another daemon than node ",
                                                  context_.model.world.cluster->node(), " did not reach it within ",
                                                  absl::FormatDuration(context_.model.step_timeout)));
}

void GatherWorker::TakeAll(int rank, absl::StatusOr<std::vector<SentCommand>> commands) {
  if (state_.end.ended()) return;
  if (!commands.ok()) return state_.End(commands.status());
  for (SentCommand& command : *commands) {
    state_.Take(rank, std::move(command));
    if (state_.end.ended()) return;
  }
}

void GatherWorker::PublishReady(const GatherCall& call, int target, int source) const {
  state_.rank_slots[topology_.LocalRank(target)]->PublishReady(call.slot, source, call.number);
}

GatherCall GatherWorker::CallOf(const Sequence::GatherWork& work) const {
  const v1::Gather& gather = work.command->gather();
  return {.number = work.command->number(),
          .unit = gather.unit(),
          .phase = *PhaseFromProto(gather.phase()),  // checked by the sequence
          .slot = gather.slot(),
          .target = topology_.GroupRank(work.target)};
}

GatherWorker::UnderWay GatherWorker::Begin(int rank, const Sequence::GatherWork& work) {
  const GatherCall call = CallOf(work);
  if (work.target == rank) {
    Event event = EventOf(EventKind::kGather, EventEdge::kBegin, *work.command);
    event.bytes = context_.model.layout.units()[call.unit].slot_bytes[call.phase];
    Note(state_.recorder->of(rank).gathers, event);
  }
  return {.call = call,
          .begun = engines_.of(rank).Gather(call, [&](int target, int source) { PublishReady(call, target, source); })};
}

bool GatherWorker::Finish(int rank, AllUnderWay& under_way) {
  bool finished = false;
  for (int target = 0; target < context_.model.ranks(); ++target) {
    std::deque<UnderWay>& gathers = under_way[target];
    while (!gathers.empty()) {
      const GatherCall& call = gathers.front().call;
      absl::StatusOr<bool> done = true;
      if (const absl::Status& begun = gathers.front().begun; !begun.ok()) {
        done = begun;
      } else {
        done = engines_.of(rank).GatherDone(call, [&](int to, int source) { PublishReady(call, to, source); });
      }
      if (done.ok() && !*done) break;
      FinishOne(rank, target, done.status());
      gathers.pop_front();
      finished = true;
    }
  }
  return finished;
}

void GatherWorker::FinishOne(int rank, int target, const absl::Status& status) {
  SpinningMutexLock lock(&state_.mu);
  const bool served = state_.sequence.FinishGather(rank, target, state_.Now());
  // Its thread notes the end.
  if (served && target != rank) state_.rank_slots[target]->Call();
  state_.EndOnError(status);
  state_.WakeRunnable();
}

std::vector<GatherWorker::Own> GatherWorker::TakeServed(int rank, std::deque<Own>& own) const {
  std::vector<Own> served;
  while (!own.empty() && state_.sequence.IsServed(rank, own.front().call.number)) {
    served.push_back(own.front());
    own.pop_front();
  }
  return served;
}

}  // namespace paramshard::server
