#include "server/training/sequence_waits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/shared_memory/words.h"
#include "server/base/steady_time.h"
#include "server/training/command_text.h"

namespace paramshard::server {

using wire::Reached;

namespace {

constexpr char kNoMemory[] =
    "; the daemon had no memory to copy the push out of its slot: leave it more, or raise gradient_slots";

}  // namespace

bool SequenceWaits::HasPushes(int rank, int64_t step) const {
  return std::any_of(facts_.groups.all().begin(), facts_.groups.all().end(),
                     [&](const PushGroup& group) { return group.step == step && !group.summed[rank]; });
}

bool SequenceWaits::IsFilled(const PushGroup& group, int rank) const {
  const PushPart& part = group.parts[rank];
  return part.number > 0 && Reached(facts_.words.Filled(rank, part.slot), static_cast<uint32_t>(part.number));
}

bool SequenceWaits::IsAbsent(const PushGroup& group, int rank) const {
  if (facts_.equal_commands || group.parts[rank].number > 0) return false;
  return facts_.ends.sent(rank) > group.step || facts_.closed[rank];
}

bool SequenceWaits::IsComplete(const PushGroup& group) const {
  for (int rank = 0; rank < facts_.ranks; ++rank) {
    if (!IsFilled(group, rank) && !IsAbsent(group, rank)) return false;
  }
  return true;
}

SequenceWaits::Wait SequenceWaits::OfGather(int rank, const QueuedGather& gather) const {
  // Pieces that still arrive in the slot cannot be released.
  if (facts_.ends.commits_answered() < gather.commits_before || !facts_.gathers.IsFinished(rank, gather.slot_user)) {
    return {};
  }
  const int slot = gather.command.gather().slot();
  if (Reached(facts_.words.Released(rank, slot), static_cast<uint32_t>(gather.slot_user))) return {};
  return {.rank = rank,
          .kind = Wait::Kind::kRelease,
          .slot = slot,
          .number = gather.command.number(),
          .command = &gather.command,
          .since = std::max(gather.arrived_at, facts_.gathers.changed_at(rank))};
}

SequenceWaits::Wait SequenceWaits::OfGather(int rank) const {
  const QueuedGather* const gather = facts_.gathers.Next(rank, rank);
  return gather == nullptr ? Wait() : OfGather(rank, *gather);
}

bool SequenceWaits::IsLanded(const PushGroup& group) const {
  return std::all_of(group.parts.begin(), group.parts.end(),
                     [&](const PushPart& part) { return part.number == 0 || part.reads == facts_.ranks; });
}

bool SequenceWaits::LacksMemory(const PushGroup& group) const {
  return std::any_of(group.parts.begin(), group.parts.end(), [&](const PushPart& part) {
    return part.number > 0 && part.reads < facts_.ranks && part.lands_after > SteadyTime();
  });
}

// No trainer waits for a push that is landed, until all are at the end of the step.
SequenceWaits::Wait SequenceWaits::OfGroup(int rank, const PushGroup& group) const {
  const bool is_landed = IsLanded(group);
  const StepEnd* const end = facts_.ends.Find(group.step);
  const bool is_at_end = end != nullptr && facts_.ends.IsAgreed(*end);
  if (is_landed && !is_at_end) return {};
  SteadyTime begun = std::max(facts_.pushes_changed_at[rank], facts_.ends.answered_at());
  if (is_at_end) begun = std::max(begun, end->agreed_at);
  for (int peer = 0; peer < facts_.ranks; ++peer) {
    if (group.parts[peer].number > 0 || IsAbsent(group, peer)) continue;
    return {.rank = peer,
            .number = group.command.number(),
            .sender = group.first_rank,
            .command = &group.command,
            .lacks_memory = LacksMemory(group),
            // A rank's ring is not read while an engine works on a gather.
            .since = std::max({group.first_arrival, begun, facts_.gathers.changed_at(peer)})};
  }
  for (int peer = 0; peer < facts_.ranks; ++peer) {
    const PushPart& part = group.parts[peer];
    // A slot that is not drained cannot be filled.
    if (part.number == 0 || IsFilled(group, peer) || facts_.groups.IsSlotBusy(peer, part)) continue;
    return {.rank = peer,
            .kind = Wait::Kind::kGradients,
            .slot = part.slot,
            .number = part.number,
            .command = &group.command,
            .since = std::max(group.last_arrival, begun)};
  }
  return {};
}

SequenceWaits::Wait SequenceWaits::OfPush(int rank) const {
  if (!MayBegin(rank)) return {};
  const int64_t step = facts_.ends.done(rank);
  bool has_pushes = false;
  for (const PushGroup& group : facts_.groups.all()) {
    if (group.step != step || group.summed[rank]) continue;
    has_pushes = true;
    if (const Wait wait = OfGroup(rank, group); wait.rank >= 0) return wait;
  }
  const StepEnd* const end = facts_.ends.Find(step);
  if (has_pushes || end == nullptr || !facts_.ends.IsAgreed(*end) || !end->is_commit()) return {};
  return OfCommit(rank, *end);
}

SequenceWaits::Wait SequenceWaits::OfCommit(int rank, const StepEnd& end) const {
  // Units that are not gathered cannot be released: then the rank waits for the daemon.
  if (!facts_.stages.is_pending(rank) || !facts_.gathers.IsNoneBefore(rank, end.numbers[rank])) return {};
  const std::vector<int64_t>& users = end.slot_users[rank];
  for (size_t slot = 0; slot < users.size(); ++slot) {
    if (Reached(facts_.words.Released(rank, static_cast<int>(slot)), static_cast<uint32_t>(users[slot]))) continue;
    return {.rank = rank,
            .kind = Wait::Kind::kRelease,
            .slot = static_cast<int>(slot),
            .number = end.numbers[rank],
            .command = &end.command,
            .since = std::max({end.agreed_at, facts_.pushes_changed_at[rank], facts_.gathers.changed_at(rank)})};
  }
  return {};
}

SequenceWaits::Wait SequenceWaits::Missing() const {
  const auto since = [&](int rank, SteadyTime first_arrival) {
    return std::max(first_arrival, facts_.gathers.changed_at(rank));
  };
  if (const EqualCommands::Command* const command = facts_.equal.FirstMissing(); command != nullptr) {
    for (int rank = 0; rank < facts_.ranks; ++rank) {
      if (facts_.received[rank] >= command->command.number()) continue;
      return {.rank = rank,
              .number = command->command.number(),
              .command = &command->command,
              .since = since(rank, command->first_arrival)};
    }
  }
  if (const StepEnd* const end = facts_.ends.FirstMissing(); end != nullptr) {
    for (int rank = 0; rank < facts_.ranks; ++rank) {
      if (end->numbers[rank] > 0) continue;
      return {.rank = rank,
              .number = end->command.number(),
              .sender = end->first_rank,
              .command = &end->command,
              .since = since(rank, end->first_arrival)};
    }
  }
  return {};
}

std::vector<SequenceWaits::Wait> SequenceWaits::All() const {
  std::vector<Wait> waits = {Missing()};
  for (int rank = 0; rank < facts_.ranks; ++rank) {
    waits.push_back(OfGather(rank));
    waits.push_back(OfPush(rank));
  }
  waits.erase(std::remove_if(waits.begin(), waits.end(), [](const Wait& wait) { return wait.rank < 0; }), waits.end());
  return waits;
}

void SequenceWaits::FindLateRanks(std::vector<char>& late) const {
  std::fill(late.begin(), late.end(), false);
  if (facts_.ranks == 1) return;
  // Sets the only rank for which `is_missing`.
  const auto set_only = [&](auto is_missing) {
    int only = -1;
    for (int rank = 0; rank < facts_.ranks; ++rank) {
      if (!is_missing(rank)) continue;
      if (only >= 0) return;
      only = rank;
    }
    if (only >= 0) late[only] = true;
  };
  for (const PushGroup& group : facts_.groups.all()) {
    if (group.sums > 0 || IsLanded(group)) continue;
    if (facts_.groups.differs(group.unit) && group.arrived < facts_.ranks) continue;
    // Ranks that have not sent it are waited for first.
    if (group.arrived < facts_.ranks) {
      set_only([&](int rank) { return group.parts[rank].number == 0 && !IsAbsent(group, rank); });
    } else {
      set_only([&](int rank) { return !IsFilled(group, rank); });
    }
  }
  if (const StepEnd* const end = facts_.ends.FirstMissing(); end != nullptr) {
    set_only([&](int rank) { return end->numbers[rank] == 0; });
  }
  // The trainer that keeps its rank from a commit's sum.
  if (const int rank = facts_.stages.OnlyPending(); rank >= 0 && OfPush(rank).rank == rank) late[rank] = true;
}

std::string SequenceWaits::Text(const Wait& wait) const {
  std::string name = CommandName(facts_.spec, *wait.command);
  if (wait.command->has_push()) {
    name = absl::StrCat("push ", facts_.spec.units[wait.command->push().unit()].name);
    if (wait.kind == Wait::Kind::kGradients) absl::StrAppend(&name, " from gradient slot ", wait.slot);
  }
  const bool is_own = wait.sender < 0 || wait.sender == wait.rank;
  absl::StrAppend(&name, " (command ", wait.number,
                  is_own ? "" : absl::StrCat(" of rank ", facts_.first_rank + wait.sender), ")");
  switch (wait.kind) {
    case Wait::Kind::kCommand:
      return wait.command->has_push() && !facts_.equal_commands ? absl::StrCat(name, ", or the commit after it") : name;
    case Wait::Kind::kRelease:
      return absl::StrCat("release of slot ", wait.slot, " for ", name);
    case Wait::Kind::kGradients:
      return absl::StrCat("gradients for ", name);
  }
  return "";
}

std::string SequenceWaits::TextWithRank(const Wait& wait) const {
  return absl::StrCat("rank ", facts_.first_rank + wait.rank, ": ", Text(wait));
}

absl::Status SequenceWaits::Overdue(SteadyTime now) const {
  for (const Wait& wait : All()) {
    if (now < After(wait.since, facts_.timeout)) continue;
    return absl::DeadlineExceededError(absl::StrCat("rank ", facts_.first_rank + wait.rank, " did not reach ",
                                                    Text(wait), " within ", absl::FormatDuration(facts_.timeout),
                                                    wait.lacks_memory ? kNoMemory : ""));
  }
  return absl::OkStatus();
}

SteadyTime SequenceWaits::NextDeadline() const {
  SteadyTime next = kNever;
  for (const Wait& wait : All()) next = std::min(next, After(wait.since, facts_.timeout));
  return next;
}

std::string SequenceWaits::Describe(int rank) const {
  if (const Wait gather = OfGather(rank); gather.rank >= 0) return TextWithRank(gather);
  // A rank that has come to the end of its step waits for the others there.
  const Wait missing = Missing();
  const StepEnd* const end = facts_.ends.FirstMissing();
  const bool is_there =
      missing.rank >= 0 && (facts_.equal_commands ? facts_.received[rank] >= missing.number : end->numbers[rank] > 0);
  if (is_there && !facts_.equal_commands) return TextWithRank(missing);
  if (const Wait push = OfPush(rank); push.rank >= 0) return TextWithRank(push);
  return is_there ? TextWithRank(missing) : "";
}

}  // namespace paramshard::server
