#include "server/training/sequence_waits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/shared_memory/words.h"
#include "server/base/steady_time.h"
#include "server/training/command_text.h"

namespace paramshard::server {

using wire::Reached;

SequenceWaits::Wait SequenceWaits::OfGather(int rank) const {
  const CommandQueue& queue = queues_.gathers(rank);
  if (!queue.HasNext()) return {};
  const int64_t number = queue.next();
  const QueuedCommand& command = queues_.At(number);
  // Pieces that still arrive in the slot cannot be released.
  if (!queues_.IsAgreed(command) || queues_.IsBehindCommit(number) || !queues_.IsFinished(command.slot_users[0])) {
    return {};
  }
  const int slot = command.command.gather().slot();
  for (int peer = 0; peer < queues_.ranks(); ++peer) {
    if (Reached(words_.Released(peer, slot), static_cast<uint32_t>(command.slot_users[0]))) continue;
    return {.rank = peer,
            .kind = Wait::Kind::kRelease,
            .slot = slot,
            .number = number,
            .since = std::max(command.agreed_at, queue.changed_at)};
  }
  return {};
}

SequenceWaits::Wait SequenceWaits::OfPush(int rank) const {
  const CommandQueue& queue = queues_.pushes(rank);
  if (!queue.HasNext() || queue.begun > 0) return {};
  const int64_t number = queue.next();
  const QueuedCommand& command = queues_.At(number);
  if (!queues_.IsAgreed(command) || queues_.IsBehindCommit(number)) return {};
  if (command.command.has_commit()) return OfCommit(rank, number);
  if (command.command.has_discard()) return {};
  const int slot = command.command.push().slot();
  for (int peer = 0; peer < queues_.ranks(); ++peer) {
    if (Reached(words_.Filled(peer, slot), static_cast<uint32_t>(number))) continue;
    return {.rank = peer,
            .kind = Wait::Kind::kGradients,
            .number = number,
            .since = std::max(command.agreed_at, queue.changed_at)};
  }
  return {};
}

SequenceWaits::Wait SequenceWaits::OfCommit(int rank, int64_t number) const {
  const QueuedCommand& command = queues_.At(number);
  // Units that are not gathered cannot be released: then the rank waits for another trainer.
  if (!stages_.is_pending(rank) || !queues_.HasGathered(rank, number)) return {};
  for (size_t slot = 0; slot < command.slot_users.size(); ++slot) {
    if (Reached(words_.Released(rank, slot), static_cast<uint32_t>(command.slot_users[slot]))) continue;
    return {.rank = rank,
            .kind = Wait::Kind::kRelease,
            .slot = static_cast<int>(slot),
            .number = number,
            .since = std::max({command.agreed_at, queues_.pushes(rank).changed_at, queues_.gathers(rank).changed_at})};
  }
  return {};
}

std::optional<SequenceWaits::Wait> SequenceWaits::Missing() const {
  for (const QueuedCommand& command : queues_.commands()) {
    if (queues_.IsAgreed(command)) continue;
    for (int rank = 0; rank < queues_.ranks(); ++rank) {
      if (queues_.received(rank) >= command.command.number()) continue;
      // The rank's ring is not read while an engine works on its gather.
      return Wait{.rank = rank,
                  .kind = Wait::Kind::kCommand,
                  .number = command.command.number(),
                  .since = std::max(command.first_arrival, queues_.gathers(rank).changed_at)};
    }
  }
  return std::nullopt;
}

std::vector<SequenceWaits::Wait> SequenceWaits::All() const {
  std::vector<Wait> waits;
  if (const std::optional<Wait> missing = Missing(); missing.has_value()) waits.push_back(*missing);
  for (int rank = 0; rank < queues_.ranks(); ++rank) {
    for (const Wait& wait : {OfGather(rank), OfPush(rank)}) {
      if (wait.rank >= 0) waits.push_back(wait);
    }
  }
  return waits;
}

int SequenceWaits::OnlyMissing(uint32_t (TrainerWords::*word)(int rank, int slot) const, int slot,
                               int64_t number) const {
  int missing = -1;
  for (int rank = 0; rank < queues_.ranks(); ++rank) {
    if (Reached((words_.*word)(rank, slot), static_cast<uint32_t>(number))) continue;
    if (missing >= 0) return -1;
    missing = rank;
  }
  return missing;
}

int SequenceWaits::OnlyMissingCommand(int waiting) const {
  for (const CommandQueue* queue : {&queues_.gathers(waiting), &queues_.pushes(waiting)}) {
    if (queue->begun > 0 || !queue->HasNext()) continue;
    if (queues_.At(queue->next()).arrived != queues_.ranks() - 1) continue;
    int missing = 0;
    while (queues_.received(missing) >= queue->next()) ++missing;
    return missing;
  }
  return -1;
}

// A rank with a gather under way does not wait in that queue yet; a rank that waits for itself waits for no other.
void SequenceWaits::FindLateRanks(std::vector<char>& late) const {
  std::fill(late.begin(), late.end(), false);
  if (queues_.ranks() == 1) return;
  const auto set = [&](int waiting, int rank) {
    if (rank >= 0 && rank != waiting) late[rank] = true;
  };
  for (int rank = 0; rank < queues_.ranks(); ++rank) {
    const Wait gather = queues_.gathers(rank).begun == 0 ? OfGather(rank) : Wait();
    if (gather.rank >= 0) {
      set(rank, OnlyMissing(&TrainerWords::Released, gather.slot, queues_.At(gather.number).slot_users[0]));
    }
    const Wait push = OfPush(rank);
    if (push.rank >= 0 && push.kind == Wait::Kind::kGradients) {
      set(rank, OnlyMissing(&TrainerWords::Filled, queues_.At(push.number).command.push().slot(), push.number));
    }
    set(rank, OnlyMissingCommand(rank));
  }
  // The trainer that keeps its rank from a commit's sum.
  if (const int rank = stages_.OnlyPending(); rank >= 0 && OfPush(rank).rank == rank) late[rank] = true;
}

std::string SequenceWaits::Text(const Wait& wait) const {
  const std::string command =
      absl::StrCat(CommandName(spec_, queues_.At(wait.number).command), " (command ", wait.number, ")");
  switch (wait.kind) {
    case Wait::Kind::kCommand:
      return command;
    case Wait::Kind::kRelease:
      return absl::StrCat("release of slot ", wait.slot, " for ", command);
    case Wait::Kind::kGradients:
      return absl::StrCat("gradients for ", command);
  }
  return "";
}

std::string SequenceWaits::TextWithRank(const Wait& wait) const {
  return absl::StrCat("rank ", first_rank_ + wait.rank, ": ", Text(wait));
}

absl::Status SequenceWaits::Overdue(SteadyTime now) const {
  for (const Wait& wait : All()) {
    if (now < After(wait.since, timeout_)) continue;
    return absl::DeadlineExceededError(absl::StrCat("rank ", first_rank_ + wait.rank, " did not reach ", Text(wait),
                                                    " within ", absl::FormatDuration(timeout_)));
  }
  return absl::OkStatus();
}

SteadyTime SequenceWaits::NextDeadline() const {
  SteadyTime next = kNever;
  for (const Wait& wait : All()) next = std::min(next, After(wait.since, timeout_));
  return next;
}

std::string SequenceWaits::Describe(int rank) const {
  for (const Wait& wait : {OfGather(rank), OfPush(rank)}) {
    if (wait.rank >= 0) return TextWithRank(wait);
  }
  for (const CommandQueue* queue : {&queues_.gathers(rank), &queues_.pushes(rank)}) {
    if (queue->numbers.empty() || queues_.IsAgreed(queues_.At(queue->numbers.front()))) continue;
    if (const std::optional<Wait> missing = Missing(); missing.has_value()) return TextWithRank(*missing);
  }
  return "";
}

}  // namespace paramshard::server
