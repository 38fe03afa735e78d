// Commands of an epoch: taking them, and carrying them out.

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/proto_enums.h"
#include "kernels/base/status_macros.h"
#include "server/observe/log.h"
#include "server/observe/trace.h"
#include "server/terms/healing_plan.h"
#include "server/training/attention.h"
#include "server/training/command_text.h"
#include "server/training/epoch.h"
#include "server/training/spinning_mutex_lock.h"

namespace paramshard::server {
namespace {

// Largest number of commands read from a ring at once: a trainer that never stops writing holds up only itself.
constexpr int kMostCommandsAtOnce = 64;
// Largest size of commands as texts that go to node 0 in one message.
constexpr size_t kMostBytesOfWords = size_t{1} << 20;
constexpr std::chrono::microseconds kLateRanksEvery{20};
// Other daemons wait for a step no longer than the step's timeout: a copy may take this part of it.
constexpr int kShareOfStepForCopies = 2;

template <typename Work>
absl::Status Timed(MetricRegistry& metrics, CommitPhase phase, Work work) {
  const MetricTimer timer(metrics, Metric::kCommitPhase, phase);
  return work();
}

// Returns true for the status of a vote by which no daemon applies the commit.
bool IsGivenUp(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
}

EventKind KindOf(Sequence::Work work) {
  switch (work) {
    case Sequence::Work::kReduce:
      return EventKind::kPush;
    case Sequence::Work::kDiscard:
      return EventKind::kDiscard;
    case Sequence::Work::kSum:
      return EventKind::kSum;
    case Sequence::Work::kVote:
      return EventKind::kVote;
    case Sequence::Work::kApply:
      return EventKind::kApply;
    case Sequence::Work::kShareAmaxes:
      return EventKind::kShareAmaxes;
    case Sequence::Work::kEncode:
      return EventKind::kEncode;
  }
  return EventKind::kCommand;
}

// Keeps the command's numbers as they were sent: its unit may not exist.
Event EventOf(EventKind kind, EventEdge edge, const v1::Command& command) {
  Event event{.kind = kind, .edge = edge, .command = command.number()};
  if (command.has_gather()) event.unit = command.gather().unit();
  if (command.has_push()) event.unit = command.push().unit();
  if (command.has_commit()) event.commit_number = command.commit().commit_number();
  return event;
}

}  // namespace

// --- The recorder ---

void Epoch::Note(EventRing& ring, Event event) {
  event.time_ns = TraceNow();
  ring.Write(event);
}

void Epoch::NoteWork(int rank, const Sequence::PushWork& work) {
  at_[rank] = EventOf(KindOf(work.work), EventEdge::kBegin, *work.command);
  if (work.work == Sequence::Work::kReduce) at_[rank].bytes = options_.layout->units()[at_[rank].unit].gradient_bytes;
  Note(recorder_->of(rank).pushes, at_[rank]);
}

void Epoch::NoteWorkEnd(int rank) {
  at_[rank].edge = EventEdge::kEnd;
  Note(recorder_->of(rank).pushes, at_[rank]);
}

void Epoch::NoteHolder(EventRing& ring, const Sequence::Holder& holder, Sequence::Holder& noted) {
  if (holder == noted) return;
  noted = holder;
  if (holder.rank < 0) return;
  Note(ring, {.kind = EventKind::kWait, .edge = EventEdge::kBegin, .peer = holder.rank, .command = holder.command});
}

// --- Threads ---

void Epoch::GatherLoop(int rank) {
  RankSlot& rank_slot = *rank_slots_[rank];
  const bool on_gpu = !options_.shards[rank]->device().gpu_uuid().empty();
  Attention attention(
      {.words = rank_slot.words(), .wakeup = &rank_slot.wakeup(), .clock = options_.clock, .on_gpu = on_gpu});
  std::deque<UnderWay> under_way;
  int64_t known = 0;  // the last command
  int room = kMostCommandsAtOnce;
  Sequence::Holder noted;
  while (true) {
    attention.Look();
    if (FinishGathers(rank, under_way)) attention.Renew();
    absl::StatusOr<std::vector<SentCommand>> commands = rank_slot.ReadCommands(room);
    const bool more = commands.ok() && static_cast<int>(commands->size()) == room;
    const v1::Command* command = nullptr;
    SteadyTime deadline;
    auto expected = Attention::For::kNothing;
    {
      SpinningMutexLock lock(&mu_);
      if (end_.ended() && under_way.empty()) return;
      // A thread that looks again and again without sleeping counts late ranks only now and then: others wait for that.
      const bool is_news = !on_gpu || !commands.ok() || !commands->empty();
      TakeAll(rank, std::move(commands));
      const SteadyTime now = Now();
      if (is_news || now - late_since_ >= kLateRanksEvery) CountLateRanks(now);
      command = sequence_.BeginGather(rank, now);
      WakeRunnable();
      if (command == nullptr) deadline = CheckDeadlines();
      if (command == nullptr) NoteHolder(recorder_->of(rank).gathers, sequence_.GatherHolder(rank), noted);
      if (sequence_.Pending(rank)) expected = Attention::For::kWord;
      if (std::exchange(known, sequence_.last_command(rank)) != known) attention.Renew();
      room = std::min(kMostCommandsAtOnce, sequence_.Room(rank));
      rank_slot.held_back = room == 0;
    }
    if (command != nullptr) {
      under_way.push_back(BeginGather(rank, *command));
      attention.Renew();
    } else if (!more || room == 0) {
      attention.Wait(under_way.empty() ? expected : Attention::For::kCopies, deadline);
    }
  }
}

void Epoch::CountLateRanks(SteadyTime now) {
  const SteadyTime::duration since = now - std::exchange(late_since_, now);
  for (int rank = 0; rank < ranks_; ++rank) {
    if (late_ranks_[rank]) options_.metrics->AddRankWait(rank, since);
  }
  sequence_.FindLateRanks(late_ranks_);
}

SteadyTime Epoch::CheckDeadlines() {
  const SteadyTime now = Now();
  const SteadyTime deadline = std::min(sequence_.NextDeadline(), commit_.vote_deadline());
  if (now < deadline) return deadline;
  if (const absl::Status overdue = Overdue(now); !overdue.ok()) EndLocked(overdue);
  return deadline;
}

absl::Status Epoch::Overdue(SteadyTime now) const {
  if (now < commit_.vote_deadline()) return sequence_.Overdue(now);
  return absl::DeadlineExceededError(absl::StrCat(
      "commit ", options_.commit_log->numbers().commit_number + 1, ": the trainers of another daemon than node ",
      options_.cluster->node(), " did not reach it within ", absl::FormatDuration(options_.step_timeout)));
}

void Epoch::PushLoop(int rank) {
  while (true) {
    std::optional<Sequence::PushWork> work;
    Sequence::Holder noted;
    {
      absl::MutexLock lock(&mu_);
      while (!(work = sequence_.BeginPush(rank)).has_value()) {
        if (end_.ended() && sequence_.Quiet()) return;
        NoteHolder(recorder_->of(rank).pushes, sequence_.PushHolder(rank), noted);
        work_.Wait(&mu_);
      }
    }
    RunPush(rank, *work);
    // The wait that may begin now has a deadline, which the gather thread watches.
    rank_slots_[rank]->Call();
  }
}

void Epoch::TakeAll(int rank, absl::StatusOr<std::vector<SentCommand>> commands) {
  if (end_.ended()) return;
  if (!commands.ok()) return EndLocked(commands.status());
  for (SentCommand& command : *commands) {
    Take(rank, std::move(command));
    if (end_.ended()) return;
  }
}

void Epoch::Take(int rank, SentCommand command) {
  const Event event = EventOf(EventKind::kCommand, EventEdge::kInstant, command.command);
  const absl::StatusOr<bool> by_all = sequence_.Submit(rank, std::move(command), Now());
  if (!by_all.ok()) return EndLocked(by_all.status());
  Note(recorder_->of(rank).commands, event);
}

void Epoch::ReportCommands(const CommandsThrough& unless) const {
  std::deque<CommandChain::Link> links;
  {
    absl::MutexLock lock(&mu_);
    const CommandChain& chain = sequence_.chain();
    if (unless.number != 0 && chain.Through(unless.number).value_or(unless.hash) == unless.hash) return;
    links = chain.links();
  }
  std::vector<CommandInWords> commands;
  size_t bytes = 0;
  for (const CommandChain::Link& link : links) {
    v1::Command command;
    if (!command.ParseFromString(link.canonical)) continue;  // it was parsed before
    std::string text = CommandText(*options_.spec, command);
    if ((bytes += text.size()) > kMostBytesOfWords) break;
    commands.push_back({.number = link.number, .rank = link.rank, .text = std::move(text)});
  }
  options_.cluster->ReportCommands(options_.spec->name, options_.number, commands);
}

absl::Status Epoch::Submit(int rank, v1::Command command) {
  SentCommand sent(std::move(command));
  {
    absl::MutexLock lock(&mu_);
    const std::string what = absl::StrCat("command ", sent.command.number(), " of rank ", options_.first_rank + rank);
    if (end_.ended()) return absl::OkStatus();
    if (!rank_slots_[rank]->started) {
      return absl::FailedPreconditionError(what + ": sent before `started`");
    }
    if (sequence_.Room(rank) == 0) {
      return absl::ResourceExhaustedError(absl::StrCat(what, ": want at most ", Sequence::kMostCommands,
                                                       " unfinished commands, of ", Sequence::kMostBytes,
                                                       " bytes together, got more; wait for the other ranks"));
    }
    Take(rank, std::move(sent));
    WakeRunnable();
    // A wait that begins here has a deadline, which the gather thread watches.
    rank_slots_[rank]->Call();
  }
  return absl::OkStatus();
}

void Epoch::WakeRunnable() {
  CheckDepartures();
  for (int rank : sequence_.RunnableGathers()) rank_slots_[rank]->Call();
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank_slots_[rank]->held_back && sequence_.Room(rank) > 0) rank_slots_[rank]->Call();
  }
  if (end_.ended() || !sequence_.RunnablePushes().empty()) work_.SignalAll();
}

// --- Work ---

Epoch::UnderWay Epoch::BeginGather(int rank, const v1::Command& command) {
  const v1::Gather& gather = command.gather();
  const GatherCall call{.number = command.number(),
                        .unit = gather.unit(),
                        .phase = *PhaseFromProto(gather.phase()),  // checked by the sequence
                        .slot = gather.slot()};
  Event event = EventOf(EventKind::kGather, EventEdge::kBegin, command);
  event.bytes = options_.layout->units()[call.unit].slot_bytes[call.phase];
  Note(recorder_->of(rank).gathers, event);
  return {.call = call, .begun_at = Now(), .begun = engines_[rank]->Gather(call, [&](int target, int source) {
            RankSlotOf(target).PublishReady(call.slot, source, call.number);
          })};
}

bool Epoch::FinishGathers(int rank, std::deque<UnderWay>& under_way) {
  bool finished = false;
  while (!under_way.empty()) {
    const GatherCall& call = under_way.front().call;
    absl::StatusOr<bool> done = true;
    if (const absl::Status& begun = under_way.front().begun; !begun.ok()) {
      done = begun;
    } else {
      done = engines_[rank]->GatherDone(
          call, [&](int target, int source) { RankSlotOf(target).PublishReady(call.slot, source, call.number); });
    }
    if (done.ok() && !*done) break;
    Note(recorder_->of(rank).gathers,
         {.kind = EventKind::kGather, .edge = EventEdge::kEnd, .unit = call.unit, .command = call.number});
    FinishGather(rank, under_way.front().begun_at, done.status());
    under_way.pop_front();
    finished = true;
  }
  return finished;
}

void Epoch::FinishGather(int rank, SteadyTime begun_at, const absl::Status& status) {
  if (status.ok()) options_.metrics->Observe(Metric::kGather, Now() - begun_at);
  SpinningMutexLock lock(&mu_);
  sequence_.FinishGather(rank, Now());
  EndOnError(status);
  WakeRunnable();
}

void Epoch::RunPush(int rank, const Sequence::PushWork& work) {
  NoteWork(rank, work);
  switch (work.work) {
    case Sequence::Work::kReduce:
      return RunReduce(rank, *work.command);
    case Sequence::Work::kDiscard:
      return RunDiscard(rank);
    case Sequence::Work::kSum:
      return RunSum(rank);
    case Sequence::Work::kVote:
      return RunVote(rank, work);
    case Sequence::Work::kApply:
      return RunApply(rank);
    case Sequence::Work::kShareAmaxes:
      return RunShareAmaxes(rank, *work.command);
    case Sequence::Work::kEncode:
      return RunEncode(rank);
  }
}

void Epoch::RunReduce(int rank, const v1::Command& command) {
  const MetricTimer timer(*options_.metrics, Metric::kPush);
  const v1::Push& push = command.push();
  const int slot = push.slot();
  const int64_t number = command.number();
  const Shard::PushTarget target = options_.shards[rank]->BeginPush(push.unit(), push.absent_parameters());
  const absl::Status status =
      engines_[rank]->Reduce({.number = command.number(),
                              .unit = push.unit(),
                              .slot = slot,
                              .own_slices_landed = push.own_slices_landed(),
                              .absent = push.absent_parameters(),
                              .accumulators = target.accumulators,
                              .overwrite = absl::MakeConstSpan(target.overwrite.get(), target.accumulators.size())});
  NoteWorkEnd(rank);
  bool drained;
  {
    absl::MutexLock lock(&mu_);
    drained = sequence_.FinishReduce(rank, Now());
    EndOnError(status);
    WakeRunnable();
  }
  if (!drained) return;
  for (const auto& rank_slot : rank_slots_) rank_slot->PublishDrained(slot, number);
}

void Epoch::RunDiscard(int rank) {
  // Drops the sums that pushes have left, instead of making them.
  const absl::Status taken = engines_[rank]->TakeSums().status();
  options_.shards[rank]->DropGradients();
  NoteWorkEnd(rank);
  absl::MutexLock lock(&mu_);
  EndOnError(taken);
  sequence_.FinishDiscard(rank, Now());
  WakeRunnable();
}

void Epoch::RunSum(int rank) {
  const MetricTimer timer(*options_.metrics, Metric::kCommitPhase, CommitPhase::kSum);
  const absl::StatusOr<std::vector<SumTask>> left = engines_[rank]->TakeSums();
  const absl::StatusOr<SquareSum> sum = left.ok() ? options_.shards[rank]->SumSquares(*left) : left.status();
  NoteWorkEnd(rank);
  absl::MutexLock lock(&mu_);
  if (sum.ok()) commit_.SetSum(rank, *sum);
  EndOnError(sum.status());
  sequence_.FinishSum(rank);
  WakeRunnable();
}

void Epoch::RunVote(int rank, const Sequence::PushWork& work) {
  const MetricTimer timer(*options_.metrics, Metric::kCommitPhase, CommitPhase::kVote);
  const v1::Commit& commit = work.command->commit();
  CommitVote vote{.model = options_.spec->name,
                  .history_id = options_.history_id,
                  .epoch = options_.number,
                  .commit_number = commit.commit_number(),
                  .commands = work.commands,
                  .sums = {}};
  {
    absl::MutexLock lock(&mu_);
    vote.sums = commit_.Sums(options_.first_rank);
    commit_.BeginVote(After(Now(), options_.step_timeout));
    // A gather thread watches the deadline.
    rank_slots_[0]->Call();
  }
  std::optional<PreviousStates> previous;
  const absl::StatusOr<Decided> decided = Vote(work, std::move(vote), previous);
  auto verdict = Sequence::Verdict::kGivenUp;
  if (!decided.ok()) {
    options_.metrics->Add(Metric::kCommits,
                          absl::IsDataLoss(decided.status()) ? CommitResult::kInDoubt : CommitResult::kGivenUp);
  } else {
    const bool encodes = decided->apply && !options_.scaling_book->empty();
    verdict = encodes ? Sequence::Verdict::kEncodes : Sequence::Verdict::kApplies;
    options_.copy_gate->BeginCommit();
  }
  NoteWorkEnd(rank);
  absl::MutexLock lock(&mu_);
  commit_.EndVote();
  commit_.SetDecided(decided.value_or(Decided()), std::move(previous));
  if (absl::IsDataLoss(decided.status())) commit_.SetDoubt(decided.status());
  EndOnError(decided.status());
  sequence_.FinishVote(verdict);
  WakeRunnable();
}

// A decision is written down before anything learns of it.
absl::StatusOr<Decided> Epoch::Vote(const Sequence::PushWork& work, CommitVote vote,
                                    std::optional<PreviousStates>& previous) {
  const v1::Commit& commit = work.command->commit();
  ModelJournal* const journal = options_.journal;
  const auto decided = [&](const CommitDecision& decision) {
    return Decide(commit, decision, options_.spec->gradient_reduction == GradientReduction::kMean,
                  options_.topology->active_world_size());
  };
  if (journal != nullptr) {
    RETURN_IF_ERROR(
        journal->Prepare(commit, options_.topology->active_world_size(), *work.client_states, journaled_state()));
    vote.write_down = [&](const CommitDecision& decision) {
      return journal->Decide(commit.commit_number(), decided(decision));
    };
  }
  if (options_.topology->has_replicas()) vote.client_states = *work.client_states;
  absl::StatusOr<CommitDecision> decision = options_.cluster->Vote(vote);
  if (!decision.ok()) {
    // A commit in doubt stays prepared: the next server asks again.
    if (journal != nullptr && IsGivenUp(decision.status())) RETURN_IF_ERROR(journal->Withdraw());
    return decision.status();
  }
  if (decision->save.has_value()) options_.on_save_order(*decision->save);
  if (std::optional<std::vector<std::string>>& states = decision->previous_client_states; states.has_value()) {
    const Topology& topology = *options_.topology;
    previous = {.node = PreviousNode(topology.node(), topology.active()), .client_states = *std::move(states)};
  }
  return decided(*decision);
}

void Epoch::RunApply(int rank) {
  Decided decided;
  {
    absl::MutexLock lock(&mu_);
    decided = commit_.decided();
  }
  Shard& shard = *options_.shards[rank];
  if (!decided.apply) shard.DropGradients();
  // Trainers are not held responsible for a slow copy: no deadline of theirs runs while a rank applies.
  if (decided.apply) options_.copy_gate->AwaitCopied(rank, options_.step_timeout / kShareOfStepForCopies);
  const StepProgress progress = options_.journal == nullptr ? StepProgress() : options_.journal->Marks(rank);
  const absl::Status applied = Timed(*options_.metrics, CommitPhase::kApply, [&] {
    return decided.apply ? shard.Step(decided.step, progress, *options_.scaling_book) : absl::OkStatus();
  });
  NoteWorkEnd(rank);
  FinishStage(rank, applied, &Sequence::FinishApply);
}

// On an error the epoch ends: planes then have an amax that is out of date, and the next epoch encodes them.
void Epoch::RunShareAmaxes(int rank, const v1::Command& command) {
  const MetricTimer timer(*options_.metrics, Metric::kCommitPhase, CommitPhase::kShareAmaxes);
  const absl::Status shared = ShareAmaxes(command.number());
  NoteWorkEnd(rank);
  absl::MutexLock lock(&mu_);
  EndOnError(shared);
  sequence_.FinishShareAmaxes();
  WakeRunnable();
}

void Epoch::RunEncode(int rank) {
  const absl::Status encoded = Timed(*options_.metrics, CommitPhase::kEncode,
                                     [&] { return options_.shards[rank]->EncodeAfterAmax(*options_.scaling_book); });
  NoteWorkEnd(rank);
  FinishStage(rank, encoded, &Sequence::FinishEncode);
}

void Epoch::FinishStage(int rank, const absl::Status& status,
                        std::optional<Sequence::ClientStates> (Sequence::*finish)(int rank, SteadyTime now)) {
  std::optional<Sequence::ClientStates> client_states;
  Decided decided;
  std::optional<PreviousStates> previous;
  {
    absl::MutexLock lock(&mu_);
    EndOnError(status);
    if (commit_.failure().ok() && !status.ok()) options_.metrics->Add(Metric::kCommits, CommitResult::kFailed);
    commit_.Fail(status);
    client_states = (sequence_.*finish)(rank, Now());
    if (!commit_.failure().ok()) client_states.reset();
    if (client_states.has_value()) {
      commit_.BeginAnswer();
      decided = commit_.decided();
      previous = commit_.TakePrevious();
    }
    WakeRunnable();
  }
  if (client_states.has_value()) Answer(rank, decided, *std::move(client_states), std::move(previous));
}

// An error ends the epoch: the journal is one commit behind; from it the next server comes to this answer, but to no
// later one.
void Epoch::WriteAnswer(const CommitAnswer& answer) {
  if (options_.journal == nullptr) return;
  const absl::Status written =
      options_.journal->Answer(answer, options_.commit_log->numbers().skipped, journaled_state());
  if (written.ok()) return;
  const absl::Status why = absl::InternalError(absl::StrCat(
      "commit ", answer.commit_number, " is answered, and could not be written down (", written.message(), ")"));
  absl::MutexLock lock(&mu_);
  commit_.SetUnwritten(why);
  EndLocked(why);
}

// The next commit waits for this thread's part of it: answers follow each other in order.
void Epoch::Answer(int rank, const Decided& decided, Sequence::ClientStates client_states,
                   std::optional<PreviousStates> previous) {
  const MetricTimer timer(*options_.metrics, Metric::kCommitPhase, CommitPhase::kAnswer);
  const CommitAnswer answer = options_.commit_log->Answer(
      decided.apply, decided.gradient_norm, decided.non_finite_count, std::move(client_states), std::move(previous));
  WriteAnswer(answer);
  options_.metrics->Add(Metric::kCommits, answer.skipped ? CommitResult::kSkipped : CommitResult::kApplied);
  // A trainer that has the answer finds the save that the commit has made fall due.
  options_.copy_gate->EndCommit();
  options_.on_answered(answer, decided.save);
  // A trainer that has the answer finds it recorded, too.
  Note(recorder_->of(rank).pushes,
       {.kind = EventKind::kAnswer, .command = at_[rank].command, .commit_number = answer.commit_number});
  for (const auto& rank_slot : rank_slots_) rank_slot->PublishAnswer(answer);
  absl::MutexLock lock(&mu_);
  commit_.EndAnswer();
  CheckDepartures();
  if (LastCommitAnswered()) EndLocked(last_commit_->why);
  work_.SignalAll();
}

}  // namespace paramshard::server
