#include "server/training/push_worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/terms/healing_plan.h"
#include "server/training/event_notes.h"

namespace paramshard::server {
namespace {

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
    case Sequence::Work::kLand:
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

}  // namespace

void PushWorker::NoteWork(int rank, const Sequence::PushWork& work) {
  at_[rank] = EventOf(KindOf(work.work), EventEdge::kBegin, *work.command);
  at_[rank].command = work.number;
  if (work.command->has_push()) at_[rank].bytes = context_.model.layout.units()[at_[rank].unit].gradient_bytes;
  Note(state_.recorder->of(rank).pushes, at_[rank]);
}

void PushWorker::NoteWorkEnd(int rank) {
  at_[rank].edge = EventEdge::kEnd;
  Note(state_.recorder->of(rank).pushes, at_[rank]);
}

void PushWorker::Run(int rank) {
  while (true) {
    std::optional<Sequence::PushWork> work;
    Sequence::Holder noted;
    {
      absl::MutexLock lock(&state_.mu);
      while (!(work = state_.sequence.BeginPush(rank)).has_value()) {
        if (state_.end.ended() && state_.sequence.Quiet()) return;
        NoteHolder(state_.recorder->of(rank).pushes, state_.sequence.PushHolder(rank), noted);
        state_.work.Wait(&state_.mu);
      }
    }
    RunWork(rank, *work);
    // The wait that may begin now has a deadline, which the gather thread watches.
    state_.rank_slots[rank]->Call();
  }
}

void PushWorker::RunWork(int rank, const Sequence::PushWork& work) {
  NoteWork(rank, work);
  switch (work.work) {
    case Sequence::Work::kLand:
      return RunLand(rank, work);
    case Sequence::Work::kReduce:
      return RunReduce(rank, work);
    case Sequence::Work::kDiscard:
      return RunDiscard(rank);
    case Sequence::Work::kSum:
      return RunSum(rank);
    case Sequence::Work::kVote:
      return RunVote(rank, work);
    case Sequence::Work::kApply:
      return RunApply(rank);
    case Sequence::Work::kShareAmaxes:
      return RunShareAmaxes(rank, work.number);
    case Sequence::Work::kEncode:
      return RunEncode(rank);
  }
}

void PushWorker::RunReduce(int rank, const Sequence::PushWork& work) {
  const MetricTimer timer(*context_.model.world.metrics, Metric::kPush);
  const v1::Push& push = work.command->push();
  ShardGradients& gradients = context_.state.shards[rank]->gradients();
  const ShardGradients::PushTarget target = gradients.BeginPush(push.unit());
  const absl::StatusOr<std::vector<int32_t>> absent =
      engines_.of(rank).Reduce({.number = work.number,
                                .unit = push.unit(),
                                .slot = work.slots[rank],
                                .own_slices_landed = push.own_slices_landed(),
                                .absent = work.absent,
                                .accumulators = target.accumulators,
                                .overwrite = absl::MakeConstSpan(target.overwrite.get(), target.accumulators.size()),
                                .push = work.push,
                                .slots = work.slots});
  if (absent.ok()) gradients.EndPush(push.unit(), *absent);
  NoteWorkEnd(rank);
  std::vector<DrainedSlot> drained;
  {
    absl::MutexLock lock(&state_.mu);
    drained = state_.sequence.FinishReduce(rank, state_.Now());
    state_.EndOnError(absent.status());
    state_.WakeRunnable();
  }
  PublishDrained(drained);
}

// Without memory the push waits in its slot.
void PushWorker::RunLand(int rank, const Sequence::PushWork& work) {
  const v1::Push& push = work.command->push();
  const absl::Status landed = engines_.of(rank).Land({.push = work.push,
                                                      .unit = push.unit(),
                                                      .source = work.source,
                                                      .slot = work.slots[0],
                                                      .own_slices_landed = push.own_slices_landed(),
                                                      .absent = work.absent[0]});
  NoteWorkEnd(rank);
  std::vector<DrainedSlot> drained;
  {
    absl::MutexLock lock(&state_.mu);
    drained = state_.sequence.FinishLand(rank, landed.ok(), state_.Now());
    if (!absl::IsResourceExhausted(landed)) state_.EndOnError(landed);
    state_.WakeRunnable();
  }
  PublishDrained(drained);
}

void PushWorker::PublishDrained(const std::vector<DrainedSlot>& drained) const {
  for (const DrainedSlot& each : drained) state_.rank_slots[each.rank]->PublishDrained(each.slot, each.number);
}

void PushWorker::RunDiscard(int rank) {
  // Drops the sums that pushes have left, instead of making them.
  const absl::Status taken = engines_.of(rank).TakeSums().status();
  context_.state.shards[rank]->gradients().Drop();
  NoteWorkEnd(rank);
  absl::MutexLock lock(&state_.mu);
  state_.EndOnError(taken);
  state_.sequence.FinishDiscard(rank, state_.Now());
  state_.WakeRunnable();
}

void PushWorker::RunSum(int rank) {
  const MetricTimer timer(*context_.model.world.metrics, Metric::kCommitPhase, CommitPhase::kSum);
  const absl::StatusOr<std::vector<SumTask>> left = engines_.of(rank).TakeSums();
  const absl::StatusOr<SquareSum> sum =
      left.ok() ? context_.state.shards[rank]->gradients().SumSquares(*left) : left.status();
  NoteWorkEnd(rank);
  absl::MutexLock lock(&state_.mu);
  if (sum.ok()) state_.commit.SetSum(rank, *sum);
  state_.EndOnError(sum.status());
  state_.sequence.FinishSum(rank);
  state_.WakeRunnable();
}

void PushWorker::RunVote(int rank, const Sequence::PushWork& work) {
  const MetricTimer timer(*context_.model.world.metrics, Metric::kCommitPhase, CommitPhase::kVote);
  const v1::Commit& commit = work.command->commit();
  CommitVote vote{.model = context_.model.spec.name,
                  .history_id = start_.history_id,
                  .epoch = start_.epoch,
                  .commit_number = commit.commit_number(),
                  .commands = work.commands,
                  .sums = {}};
  {
    absl::MutexLock lock(&state_.mu);
    vote.sums = state_.commit.Sums(context_.model.world.first_rank);
    state_.commit.BeginVote(After(state_.Now(), context_.model.step_timeout));
    // A gather thread watches the deadline.
    state_.rank_slots[0]->Call();
  }
  std::optional<PreviousStates> previous;
  const absl::StatusOr<Decided> decided = Vote(work, std::move(vote), previous);
  auto verdict = Sequence::Verdict::kGivenUp;
  if (!decided.ok()) {
    context_.model.world.metrics->Add(
        Metric::kCommits, absl::IsDataLoss(decided.status()) ? CommitResult::kInDoubt : CommitResult::kGivenUp);
  } else {
    const bool encodes = decided->apply && !context_.state.book.empty();
    verdict = encodes ? Sequence::Verdict::kEncodes : Sequence::Verdict::kApplies;
    context_.state.copies.BeginCommit();
  }
  NoteWorkEnd(rank);
  absl::MutexLock lock(&state_.mu);
  state_.commit.EndVote();
  state_.commit.SetDecided(decided.value_or(Decided()), std::move(previous));
  if (absl::IsDataLoss(decided.status())) state_.commit.SetDoubt(decided.status());
  state_.EndOnError(decided.status());
  state_.sequence.FinishVote(verdict);
  state_.WakeRunnable();
}

// A decision is written down before anything learns of it.
absl::StatusOr<Decided> PushWorker::Vote(const Sequence::PushWork& work, CommitVote vote,
                                         std::optional<PreviousStates>& previous) {
  const v1::Commit& commit = work.command->commit();
  ModelJournal* const journal = context_.journal;
  const auto decided = [&](const CommitDecision& decision) {
    return Decide(commit, decision, context_.model.spec.gradient_reduction == GradientReduction::kMean,
                  topology_.active_world_size());
  };
  if (journal != nullptr) {
    RETURN_IF_ERROR(journal->Prepare(commit, topology_.active_world_size(), *work.client_states, context_.state));
    vote.write_down = [&](const CommitDecision& decision) {
      return journal->Decide(commit.commit_number(), decided(decision));
    };
  }
  if (topology_.has_replicas()) vote.client_states = *work.client_states;
  absl::StatusOr<CommitDecision> decision = context_.model.world.cluster->Vote(vote);
  if (!decision.ok()) {
    // A commit in doubt stays prepared: the next server asks again.
    if (journal != nullptr && IsGivenUp(decision.status())) RETURN_IF_ERROR(journal->Withdraw());
    return decision.status();
  }
  if (decision->save.has_value()) context_.host.OnSaveOrder(*decision->save);
  if (std::optional<std::vector<std::string>>& states = decision->previous_client_states; states.has_value()) {
    previous = {.node = PreviousNode(topology_.node(), topology_.active()), .client_states = *std::move(states)};
  }
  return decided(*decision);
}

void PushWorker::RunApply(int rank) {
  Decided decided;
  {
    absl::MutexLock lock(&state_.mu);
    decided = state_.commit.decided();
  }
  Shard& shard = *context_.state.shards[rank];
  if (!decided.apply) shard.gradients().Drop();
  // Trainers are not held responsible for a slow copy: no deadline of theirs runs while a rank applies.
  if (decided.apply) context_.state.copies.AwaitCopied(rank, context_.model.step_timeout / kShareOfStepForCopies);
  // A commit that is skipped changes the number.
  context_.state.publication->BeginCommit();
  const StepProgress progress = context_.journal == nullptr ? StepProgress() : context_.journal->Marks(rank);
  const absl::Status applied = Timed(*context_.model.world.metrics, CommitPhase::kApply, [&] {
    return decided.apply ? shard.Step(decided.step, progress, context_.state.book) : absl::OkStatus();
  });
  NoteWorkEnd(rank);
  FinishStage(rank, applied, &Sequence::FinishApply);
}

// On an error the epoch ends: planes then have an amax that is out of date, and the next epoch encodes them.
void PushWorker::RunShareAmaxes(int rank, int64_t number) {
  const MetricTimer timer(*context_.model.world.metrics, Metric::kCommitPhase, CommitPhase::kShareAmaxes);
  const absl::Status shared = engines_.ShareAmaxes(number);
  NoteWorkEnd(rank);
  absl::MutexLock lock(&state_.mu);
  state_.EndOnError(shared);
  state_.sequence.FinishShareAmaxes();
  state_.WakeRunnable();
}

void PushWorker::RunEncode(int rank) {
  const absl::Status encoded = Timed(*context_.model.world.metrics, CommitPhase::kEncode,
                                     [&] { return context_.state.shards[rank]->EncodeAfterAmax(context_.state.book); });
  NoteWorkEnd(rank);
  FinishStage(rank, encoded, &Sequence::FinishEncode);
}

void PushWorker::FinishStage(int rank, const absl::Status& status,
                             std::optional<Sequence::ClientStates> (Sequence::*finish)(int rank, SteadyTime now)) {
  std::optional<Sequence::ClientStates> client_states;
  Decided decided;
  std::optional<PreviousStates> previous;
  {
    absl::MutexLock lock(&state_.mu);
    state_.EndOnError(status);
    if (state_.commit.failure().ok() && !status.ok())
      context_.model.world.metrics->Add(Metric::kCommits, CommitResult::kFailed);
    state_.commit.Fail(status);
    client_states = (state_.sequence.*finish)(rank, state_.Now());
    if (!state_.commit.failure().ok()) client_states.reset();
    if (client_states.has_value()) {
      state_.commit.BeginAnswer();
      decided = state_.commit.decided();
      previous = state_.commit.TakePrevious();
    }
    state_.WakeRunnable();
  }
  if (client_states.has_value()) Answer(rank, decided, *std::move(client_states), std::move(previous));
}

// An error ends the epoch: the journal is one commit behind; from it the next server comes to this answer, but to no
// later one.
void PushWorker::WriteAnswer(const CommitAnswer& answer) {
  if (context_.journal == nullptr) return;
  const absl::Status written =
      context_.journal->Answer(answer, context_.state.commits.numbers().skipped, context_.state);
  if (written.ok()) return;
  const absl::Status why = absl::InternalError(absl::StrCat(
      "commit ", answer.commit_number, " is answered, and could not be written down (", written.message(), ")"));
  absl::MutexLock lock(&state_.mu);
  state_.commit.SetUnwritten(why);
  state_.End(why);
}

// The next commit waits for this thread's part of it: answers follow each other in order.
void PushWorker::Answer(int rank, const Decided& decided, Sequence::ClientStates client_states,
                        std::optional<PreviousStates> previous) {
  const MetricTimer timer(*context_.model.world.metrics, Metric::kCommitPhase, CommitPhase::kAnswer);
  const CommitAnswer answer =
      context_.state.commits.Answer(decided.apply, decided.gradient_norm, decided.non_finite_count,
                                    std::move(client_states), std::move(previous), decided.reader_data);
  WriteAnswer(answer);
  context_.model.world.metrics->Add(Metric::kCommits, answer.skipped ? CommitResult::kSkipped : CommitResult::kApplied);
  // A trainer that has the answer finds the save that the commit has made fall due, and the version published.
  context_.state.copies.EndCommit();
  context_.state.publication->EndCommit();
  context_.host.OnAnswered(answer, decided.save);
  // A trainer that has the answer finds it recorded, too.
  Note(state_.recorder->of(rank).pushes,
       {.kind = EventKind::kAnswer, .command = at_[rank].command, .commit_number = answer.commit_number});
  for (const auto& rank_slot : state_.rank_slots) rank_slot->PublishAnswer(answer);
  absl::MutexLock lock(&state_.mu);
  state_.FinishAnswer();
}

}  // namespace paramshard::server
