#include "server/training/sequence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/limits.h"
#include "kernels/base/status_macros.h"
#include "server/training/command_rules.h"
#include "server/training/command_text.h"

namespace paramshard::server {

Sequence::Sequence(const Options& options, const TrainerWords* words)
    : options_(options),
      queues_(options.ranks),
      stages_(options.ranks),
      waits_(*options.spec, options.first_rank, options.step_timeout, queues_, stages_, *words),
      slot_users_(options.layout->slot_bytes().size(), 0),
      step_pushes_(*options.spec),
      last_commit_(options.commit_number) {}

// --- Taking commands

absl::StatusOr<bool> Sequence::Submit(int rank, SentCommand sent, SteadyTime now) {
  const int64_t number = sent.command.number();
  if (number != queues_.received(rank) + 1) {
    return InvalidCommand(absl::StrCat("command of rank ", options_.first_rank + rank),
                          absl::StrCat("number ", queues_.received(rank) + 1), number);
  }
  if (sent.client_state.size() > kMaxClientStateBytes) {
    return InvalidCommand("commit, client state", absl::StrCat("at most ", kMaxClientStateBytes, " bytes"),
                          sent.client_state.size());
  }
  RETURN_IF_ERROR(CheckRunAhead(rank, sent.command));
  std::string client_state = std::move(sent.client_state);
  std::vector<int32_t> absent = std::move(sent.absent);
  const CommandRules rules{.spec = *options_.spec,
                           .layout = *options_.layout,
                           .may_save = options_.may_save,
                           .last_commit = last_commit_,
                           .step_pushes = step_pushes_};
  const bool is_first = number == queues_.end_number();
  RETURN_IF_ERROR(is_first ? CheckCommand(rules, sent.command) : Compare(rank, queues_.At(number), sent));
  if (sent.command.has_push()) RETURN_IF_ERROR(CheckAbsent(rules, sent.command.push(), absent));
  if (is_first) Append(rank, std::move(sent), now);
  const bool agreed = queues_.Receive(rank, number, std::move(client_state), std::move(absent));
  QueuedCommand& command = queues_.At(number);
  if (agreed) Agree(command, now);
  queues_.Enqueue(rank, command, now);
  return agreed;
}

absl::Status Sequence::CheckRunAhead(int rank, const v1::Command& command) const {
  const bool first = command.number() == queues_.end_number();
  const bool repeats = first ? RepeatsCommit(command, last_commit_) : queues_.At(command.number()).repeats;
  if (!command.has_commit() || repeats) return absl::OkStatus();
  const std::deque<int64_t>& commits = queues_.commits();
  const auto unanswered =
      std::count_if(commits.begin(), commits.end(), [&](int64_t number) { return number <= queues_.received(rank); });
  if (unanswered < kMostCommits) return absl::OkStatus();
  return InvalidCommand(
      absl::StrCat("commit ", command.commit().commit_number(), " of rank ", options_.first_rank + rank),
      absl::StrCat("at most ", kMostCommits, " unanswered commits"), unanswered + 1);
}

void Sequence::Append(int rank, SentCommand sent, SteadyTime now) {
  QueuedCommand queued;
  queued.repeats = RepeatsCommit(sent.command, last_commit_);
  queued.canonical = std::move(sent.canonical);
  queued.command = std::move(sent.command);
  queued.first_rank = rank;
  queued.first_arrival = now;
  const v1::Command& command = queued.command;
  if (command.has_gather()) {
    queued.slot_users = {std::exchange(slot_users_[command.gather().slot()], command.number())};
  } else if (command.has_push()) {
    step_pushes_.Add(command.push().unit());
  } else if (command.has_discard()) {
    step_pushes_.Clear();
  } else if (command.has_commit() && !queued.repeats) {
    queued.slot_users = slot_users_;
    last_commit_ = command.commit().commit_number();
    step_pushes_.Clear();
  }
  queues_.Append(std::move(queued));
}

absl::Status Sequence::Compare(int rank, const QueuedCommand& command, const SentCommand& sent) const {
  if (sent.canonical == command.canonical) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("command ", sent.command.number(), ": rank ", options_.first_rank + command.first_rank, " sent ",
                   CommandText(*options_.spec, command.command), ", rank ", options_.first_rank + rank, " sent ",
                   CommandText(*options_.spec, sent.command)));
}

void Sequence::Agree(QueuedCommand& command, SteadyTime now) {
  command.agreed_at = now;
  if (!options_.chains_commands) return;
  chain_.Add(options_.first_rank + command.first_rank, command.canonical);
  command.chained = chain_.hash();
}

// --- Gathers

bool Sequence::IsGatherRunnable(int rank) const {
  const CommandQueue& queue = queues_.gathers(rank);
  if (stopped_ || !queue.HasNext()) return false;
  const QueuedCommand& command = queues_.At(queue.next());
  return queues_.IsAgreed(command) && !queues_.IsBehindCommit(queue.next()) &&
         queues_.IsFinished(command.slot_users[0]) && waits_.OfGather(rank).rank < 0;
}

const v1::Command* Sequence::BeginGather(int rank, SteadyTime now) {
  if (!IsGatherRunnable(rank)) return nullptr;
  CommandQueue& queue = queues_.gathers(rank);
  queue.changed_at = now;
  return &queues_.At(queue.numbers[queue.begun++]).command;
}

void Sequence::FinishGather(int rank, SteadyTime now) { queues_.Pop(queues_.gathers(rank), now); }

// --- Pushes and commits

std::optional<Sequence::Work> Sequence::RunnableWork(int rank) const {
  const CommandQueue& queue = queues_.pushes(rank);
  if (!queue.HasNext() || queue.begun > 0) return std::nullopt;
  const int64_t number = queue.next();
  const QueuedCommand& command = queues_.At(number);
  if (!queues_.IsAgreed(command) || queues_.IsBehindCommit(number)) return std::nullopt;
  if (command.command.has_commit()) {
    const bool may_sum =
        !stopped_ && stages_.is_pending(rank) && queues_.HasGathered(rank, number) && waits_.OfPush(rank).rank < 0;
    return stages_.Next(rank, may_sum, stopped_);
  }
  if (stopped_ || waits_.OfPush(rank).rank >= 0) return std::nullopt;
  return command.command.has_discard() ? Work::kDiscard : Work::kReduce;
}

std::optional<Sequence::PushWork> Sequence::BeginPush(int rank) {
  const std::optional<Work> work = RunnableWork(rank);
  if (!work.has_value()) return std::nullopt;
  CommandQueue& queue = queues_.pushes(rank);
  queue.begun = 1;
  stages_.Begin(rank, *work);
  const QueuedCommand& command = queues_.At(queue.numbers.front());
  return PushWork{.work = *work,
                  .command = &command.command,
                  .client_states = &command.client_states,
                  .commands = {.number = command.command.number(), .hash = command.chained},
                  .absent = command.absent};
}

bool Sequence::FinishReduce(int rank, SteadyTime now) {
  CommandQueue& queue = queues_.pushes(rank);
  const bool last = queues_.At(queue.numbers.front()).finished + 1 == options_.ranks;
  queues_.Pop(queue, now);
  return last;
}

void Sequence::FinishSum(int rank) {
  stages_.FinishSum(rank);
  queues_.pushes(rank).begun = 0;
}

void Sequence::FreePushes() {
  for (int rank = 0; rank < options_.ranks; ++rank) queues_.pushes(rank).begun = 0;
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
  queues_.pushes(rank).begun = 0;
  return std::nullopt;
}

std::optional<Sequence::ClientStates> Sequence::FinishRank(int rank, SteadyTime now) {
  std::optional<ClientStates> answered;
  if (stages_.Finish(rank)) {
    chain_.Forget(queues_.commits().front());  // all daemons have voted on the same
    answered = queues_.AnswerCommit();
  }
  queues_.Pop(queues_.pushes(rank), now);
  return answered;
}

int64_t Sequence::LastCommitInFlight() const {
  const std::deque<int64_t>& commits = queues_.commits();
  const auto last = std::find_if(commits.rbegin(), commits.rend(),
                                 [&](int64_t number) { return queues_.IsAgreed(queues_.At(number)); });
  return last == commits.rend() ? 0 : *last;
}

bool Sequence::Served(int rank, int64_t number) const {
  if (queues_.received(rank) < number) return false;
  const std::deque<QueuedCommand>& commands = queues_.commands();
  return std::none_of(commands.begin(), commands.end(), [&](const QueuedCommand& command) {
    return command.command.number() <= number && !command.command.has_gather() && command.finished < options_.ranks;
  });
}

void Sequence::FindLateRanks(std::vector<char>& late) const {
  if (stopped_) {
    std::fill(late.begin(), late.end(), false);
  } else {
    waits_.FindLateRanks(late);
  }
}

}  // namespace paramshard::server
