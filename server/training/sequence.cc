#include "server/training/sequence.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/limits.h"
#include "common/shared_memory/words.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"
#include "server/training/command_text.h"

namespace paramshard::server {

Sequence::Sequence(const Options& options, const TrainerWords* words)
    : options_(options),
      gathers_(options.ranks, options.gathers_together),
      groups_(*options.spec, options.ranks),
      ends_(options.ranks),
      equal_(*options.spec, options.ranks, options.first_rank),
      stages_(options.ranks),
      tasks_(options.ranks),
      received_(options.ranks, 0),
      closed_(options.ranks, false),
      pushes_changed_at_(options.ranks),
      slot_users_(options.ranks, std::vector<int64_t>(options.layout->slot_bytes().size(), 0)),
      step_pushes_(options.ranks, StepPushes(*options.spec)),
      last_commits_(options.ranks, options.commit_number),
      waits_({.spec = *options.spec,
              .ranks = options.ranks,
              .first_rank = options.first_rank,
              .timeout = options.step_timeout,
              .equal_commands = options.equal_commands,
              .gathers = gathers_,
              .groups = groups_,
              .ends = ends_,
              .equal = equal_,
              .stages = stages_,
              .received = received_,
              .closed = closed_,
              .pushes_changed_at = pushes_changed_at_,
              .words = *words}) {}

// --- Taking commands

int Sequence::Room(int rank) const {
  if (gathers_.bytes(rank) + groups_.bytes(rank) + ends_.bytes(rank) >= kMostBytes) return 0;
  return std::max(0, kMostCommands - Unfinished(rank));
}

CommandRules Sequence::RulesFor(int rank) const {
  return {.spec = *options_.spec,
          .layout = *options_.layout,
          .may_save = options_.may_save,
          .last_commit = last_commits_[rank],
          .step_pushes = step_pushes_[rank]};
}

absl::Status Sequence::Submit(int rank, SentCommand sent, SteadyTime now) {
  const int64_t number = sent.command.number();
  if (number != received_[rank] + 1) {
    return InvalidCommand(absl::StrCat("command of rank ", options_.first_rank + rank),
                          absl::StrCat("number ", received_[rank] + 1), number);
  }
  if (sent.client_state.size() > kMaxClientStateBytes) {
    return InvalidCommand("commit, client state", absl::StrCat("at most ", kMaxClientStateBytes, " bytes"),
                          sent.client_state.size());
  }
  RETURN_IF_ERROR(CheckRunAhead(rank, sent.command));
  if (options_.equal_commands) RETURN_IF_ERROR(equal_.Add(rank, sent, now));
  RETURN_IF_ERROR(CheckCommand(RulesFor(rank), sent.command));
  if (sent.command.has_push()) RETURN_IF_ERROR(CheckAbsent(RulesFor(rank), sent.command.push(), sent.absent));
  RETURN_IF_ERROR(Compare(rank, sent));
  received_[rank] = number;
  Append(rank, std::move(sent), now);
  if (options_.equal_commands) Chain();
  return absl::OkStatus();
}

absl::Status Sequence::CheckRunAhead(int rank, const v1::Command& command) const {
  if (!command.has_commit() || RepeatsCommit(command, last_commits_[rank])) return absl::OkStatus();
  const int64_t unanswered = ends_.commits_sent(rank) - ends_.commits_answered();
  if (unanswered < kMostCommits) return absl::OkStatus();
  return InvalidCommand(
      absl::StrCat("commit ", command.commit().commit_number(), " of rank ", options_.first_rank + rank),
      absl::StrCat("at most ", kMostCommits, " unanswered commits"), unanswered + 1);
}

absl::Status Sequence::Compare(int rank, const SentCommand& sent) const {
  const v1::Command* first = nullptr;
  int first_rank = 0;
  if (sent.command.has_push()) {
    const PushGroup* const group = groups_.NextOf(rank, ends_.sent(rank), sent.command.push().unit());
    if (group == nullptr && groups_.all().size() >= kMostPushes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("push of rank ", options_.first_rank + rank, ": want at most ", kMostPushes,
                       " pushes in a step that other ranks have not made: step more often, or let ranks run the same "
                       "units"));
    }
    if (group == nullptr) return absl::OkStatus();
    if (group->command.push().own_slices_landed() == sent.command.push().own_slices_landed()) return absl::OkStatus();
    first = &group->command;
    first_rank = group->first_rank;
  } else if (!sent.command.has_gather() && !RepeatsCommit(sent.command, last_commits_[rank])) {
    const StepEnd* const end = ends_.NextOf(rank);
    if (end == nullptr) return absl::OkStatus();
    if (end->is_commit() == sent.command.has_commit() && end->unnumbered == sent.unnumbered) return absl::OkStatus();
    first = &end->command;
    first_rank = end->first_rank;
  }
  if (first == nullptr) return absl::OkStatus();
  const auto text = [&](int of, const v1::Command& command) {
    return absl::StrCat("rank ", options_.first_rank + of, " sent ", CommandText(*options_.spec, command), " (command ",
                        command.number(), ")");
  };
  const bool drops = first->has_discard() != sent.command.has_discard();
  return absl::FailedPreconditionError(
      absl::StrCat("ranks disagree: ", text(first_rank, *first), ", ", text(rank, sent.command),
                   drops ? "; gradients are dropped on all ranks together: let each call zero_grad(), after a forward "
                           "that computes gradients"
                         : ""));
}

void Sequence::Append(int rank, SentCommand sent, SteadyTime now) {
  if (sent.command.has_gather()) return AppendGather(rank, std::move(sent), now);
  if (Unfinished(rank) == gathers_.unfinished(rank)) pushes_changed_at_[rank] = now;
  if (!sent.command.has_push()) return AppendEnd(rank, std::move(sent), now);
  step_pushes_[rank].Add(sent.command.push().unit());
  groups_.Add(rank, ends_.sent(rank), std::move(sent), now);
}

void Sequence::AppendGather(int rank, SentCommand sent, SteadyTime now) {
  QueuedGather gather;
  gather.commits_before = ends_.commits_sent(rank);
  gather.slot_user = std::exchange(slot_users_[rank][sent.command.gather().slot()], sent.command.number());
  gather.arrived_at = now;
  gather.bytes = sent.canonical.size();
  gather.command = std::move(sent.command);
  gathers_.Append(rank, std::move(gather));
}

void Sequence::AppendEnd(int rank, SentCommand sent, SteadyTime now) {
  // A commit that repeats has nothing left to do.
  if (RepeatsCommit(sent.command, last_commits_[rank])) return;
  if (sent.command.has_commit()) last_commits_[rank] = sent.command.commit().commit_number();
  ends_.Add(rank, std::move(sent), slot_users_[rank], now);
  step_pushes_[rank].Clear();
  groups_.EndStep(rank);
}

void Sequence::Chain() {
  while (const std::optional<EqualCommands::Command> agreed = equal_.TakeAgreed()) {
    if (!options_.chains_commands) continue;
    chain_.Add(options_.first_rank + agreed->first_rank, agreed->canonical);
    const int64_t number = agreed->command.number();
    for (int64_t step = ends_.finished(); step < ends_.sent(0); ++step) {
      if (ends_.At(step).numbers[0] == number) ends_.At(step).chained = chain_.hash();
    }
  }
}

// --- Gathers

bool Sequence::MayGather(int target, const QueuedGather& gather) const {
  if (ends_.commits_answered() < gather.commits_before || waits_.OfGather(target, gather).rank >= 0) return false;
  if (!gathers_.IsFinished(target, gather.slot_user)) return false;
  return !options_.gathers_together || std::all_of(received_.begin(), received_.end(), [&](int64_t received) {
    return received >= gather.command.number();
  });
}

std::optional<int> Sequence::RunnableGather(int rank) const {
  if (stopped_) return std::nullopt;
  const int targets = options_.gathers_together ? 1 : options_.ranks;
  // Every rank begins with its next neighbour, so that ranks write to different peers.
  for (int step = 0; step < targets; ++step) {
    const int target = (rank + step) % options_.ranks;
    const QueuedGather* const gather = gathers_.Next(rank, target);
    if (gather != nullptr && MayGather(target, *gather)) return target;
  }
  return std::nullopt;
}

bool Sequence::IsGatherRunnable(int rank) const { return RunnableGather(rank).has_value(); }

std::optional<Sequence::GatherWork> Sequence::BeginGather(int rank, SteadyTime now) {
  const std::optional<int> target = RunnableGather(rank);
  if (!target.has_value()) return std::nullopt;
  return GatherWork{.target = *target, .command = &gathers_.Begin(rank, *target, now)};
}

// --- Landing

// Only what a rank's trainer may wait for is landed: a slot that is filled, while the group waits for others.
SteadyTime Sequence::LandsAt(const PushGroup& group, const PushPart& part) const {
  if (part.lands || !part.filled_at.has_value()) return kNever;
  const SteadyTime since = std::max({*part.filled_at, ends_.answered_at(), part.lands_after});
  if (groups_.differs(group.unit) && group.arrived < options_.ranks) return since;
  return After(since, options_.land_after);
}

// Calls `held(group)` for every push that cannot be summed now: it waits for ranks, or for an earlier push of its unit.
template <typename Groups, typename Held>
void Sequence::ForEachHeld(Groups& groups, Held held) const {
  if (stopped_ || options_.equal_commands || options_.ranks == 1) return;
  std::vector<int> waiting;
  for (auto& group : groups) {
    if (group.sums > 0) continue;
    const bool is_next = std::find(waiting.begin(), waiting.end(), group.unit) == waiting.end();
    if (is_next && waits_.IsComplete(group)) continue;
    waiting.push_back(group.unit);
    held(group);
  }
}

void Sequence::Look(SteadyTime now) {
  ForEachHeld(groups_.all(), [&](PushGroup& group) {
    for (int rank = 0; rank < options_.ranks; ++rank) {
      PushPart& part = group.parts[rank];
      if (part.number == 0 || ends_.done(rank) < group.step || !waits_.MayBegin(rank)) continue;
      if (!part.filled_at.has_value() && waits_.IsFilled(group, rank)) part.filled_at = now;
      if (now < LandsAt(group, part)) continue;
      part.lands = true;
      if (group.arrived < options_.ranks) groups_.set_differs(group.unit);
    }
  });
}

SteadyTime Sequence::NextLanding() const {
  SteadyTime next = kNever;
  ForEachHeld(groups_.all(), [&](const PushGroup& group) {
    for (const PushPart& part : group.parts) next = std::min(next, LandsAt(group, part));
  });
  return next;
}

// --- Pushes and commits

template <typename Groups>
auto Sequence::RunnablePush(int rank, Groups& groups) const {
  using Found = TaskOn<std::remove_reference_t<decltype(groups.front())>>;
  std::vector<int> waiting;  // units of which an earlier push waits
  for (auto& group : groups) {
    if (group.step != ends_.done(rank) || group.summed[rank]) continue;
    const bool is_next = std::find(waiting.begin(), waiting.end(), group.unit) == waiting.end();
    if (is_next && waits_.IsComplete(group)) return std::optional(Found{.work = Work::kReduce, .group = &group});
    for (int source = 0; source < options_.ranks; ++source) {
      const PushPart& part = group.parts[source];
      if (!part.lands || part.read[rank]) continue;
      return std::optional(Found{.work = Work::kLand, .group = &group, .source = source});
    }
    if (options_.equal_commands) break;
    waiting.push_back(group.unit);
  }
  return std::optional<Found>();
}

template <typename Groups>
auto Sequence::RunnableWork(int rank, Groups& groups) const {
  using Found = decltype(RunnablePush(rank, groups));
  if (tasks_[rank].has_value()) return Found();
  const int64_t step = ends_.done(rank);
  const StepEnd* const end = ends_.Find(step);
  if (waits_.HasPushes(rank, step)) {
    return stopped_ || !waits_.MayBegin(rank) ? Found() : RunnablePush(rank, groups);
  }
  if (end == nullptr || !ends_.IsAgreed(*end) || !waits_.MayBegin(rank)) return Found();
  if (end->is_commit()) {
    const bool may_sum = !stopped_ && stages_.is_pending(rank) && gathers_.IsNoneBefore(rank, end->numbers[rank]) &&
                         waits_.OfPush(rank).rank < 0;
    const std::optional<Work> work = stages_.Next(rank, may_sum, stopped_);
    return work.has_value() ? Found({.work = *work}) : Found();
  }
  return stopped_ ? Found() : Found({.work = Work::kDiscard});
}

bool Sequence::IsPushRunnable(int rank) const { return RunnableWork(rank, groups_.all()).has_value(); }

std::optional<Sequence::PushWork> Sequence::BeginPush(int rank) {
  const std::optional<Task> task = RunnableWork(rank, groups_.all());
  if (!task.has_value()) return std::nullopt;
  tasks_[rank] = task;
  PushWork work{.work = task->work};
  if (PushGroup* const group = task->group; group != nullptr) {
    if (task->work == Work::kReduce) groups_.Complete(*group);
    const PushPart& part = group->parts[task->work == Work::kLand ? task->source : rank];
    work.command = &group->command;
    work.number = part.number > 0 ? part.number : received_[rank];
    if (part.number == 0 && ends_.Find(group->step) != nullptr) work.number = ends_.At(group->step).numbers[rank];
    work.push = group->id;
    work.slots = group->slots;
    work.absent = group->absent;
    work.source = task->source;
    if (task->work == Work::kLand) {
      work.slots = absl::MakeConstSpan(&part.slot, 1);
      work.absent = absl::MakeConstSpan(&part.absent, 1);
    }
    return work;
  }
  stages_.Begin(rank, task->work);
  const StepEnd& end = ends_.At(ends_.done(rank));
  work.command = &end.command;
  work.number = end.numbers[rank];
  work.client_states = &end.client_states;
  work.commands = {.number = work.number, .hash = end.chained};
  return work;
}

Sequence::Task Sequence::Finish(int rank, SteadyTime now) {
  pushes_changed_at_[rank] = now;
  return *std::exchange(tasks_[rank], std::nullopt);
}

std::vector<DrainedSlot> Sequence::FinishReduce(int rank, SteadyTime now) {
  std::vector<DrainedSlot> drained;
  groups_.FinishSum(*Finish(rank, now).group, rank, drained);
  return drained;
}

std::vector<DrainedSlot> Sequence::FinishLand(int rank, bool landed, SteadyTime now) {
  std::vector<DrainedSlot> drained;
  const Task task = Finish(rank, now);
  PushPart& part = task.group->parts[task.source];
  if (!landed) part.lands_after = After(now, options_.land_after);
  if (!landed) part.lands = false;
  if (landed) groups_.FinishLand(*task.group, rank, task.source, drained);
  return drained;
}

void Sequence::FinishDiscard(int rank, SteadyTime now) {
  Finish(rank, now);
  ends_.Finish(rank, now);
}

void Sequence::FinishSum(int rank) {
  stages_.FinishSum(rank);
  tasks_[rank].reset();
}

void Sequence::FreePushes() {
  for (std::optional<Task>& task : tasks_) task.reset();
}

void Sequence::FinishVote(Verdict verdict) {
  stages_.FinishVote(verdict);
  FreePushes();
}

void Sequence::FinishShareAmaxes() {
  stages_.FinishShareAmaxes();
  FreePushes();
}

std::optional<Sequence::ClientStates> Sequence::FinishApply(int rank, SteadyTime now) {
  if (stages_.FinishApply(rank)) return FinishRank(rank, now);
  tasks_[rank].reset();
  return std::nullopt;
}

std::optional<Sequence::ClientStates> Sequence::FinishRank(int rank, SteadyTime now) {
  std::optional<ClientStates> answered;
  if (stages_.Finish(rank)) {
    StepEnd& commit = ends_.FirstCommit();
    chain_.Forget(commit.command.number());  // all daemons have voted on the same
    answered = std::exchange(commit.client_states, {});
  }
  Finish(rank, now);
  ends_.Finish(rank, now);
  return answered;
}

bool Sequence::Quiet() const {
  const bool is_busy =
      gathers_.IsBusy() ||
      std::any_of(tasks_.begin(), tasks_.end(), [](const std::optional<Task>& task) { return task.has_value(); });
  return stopped_ && !is_busy && !stages_.is_open();
}

bool Sequence::Served(int rank, int64_t number) const {
  return received_[rank] >= number && !groups_.IsUndrainedThrough(rank, number) && !ends_.IsOneThrough(rank, number);
}

bool Sequence::CarriedOut(int64_t point) const {
  if (!options_.equal_commands) return ends_.finished() >= point;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (!Served(rank, point) || !gathers_.IsFinished(rank, point)) return false;
    const bool is_summed = std::none_of(groups_.all().begin(), groups_.all().end(),
                                        [&](const PushGroup& group) { return group.command.number() <= point; });
    if (!is_summed) return false;
  }
  return true;
}

void Sequence::FindLateRanks(std::vector<char>& late) const {
  if (stopped_) {
    std::fill(late.begin(), late.end(), false);
  } else {
    waits_.FindLateRanks(late);
  }
}

}  // namespace paramshard::server
