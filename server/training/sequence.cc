#include "server/training/sequence.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/group_hyperparameters.h"
#include "common/model/proto_enums.h"
#include "common/shared_memory/words.h"
#include "kernels/base/status_macros.h"
#include "server/training/command_text.h"

namespace paramshard::server {
namespace {

using wire::Reached;

absl::Status Invalid(absl::string_view what, absl::string_view expected, auto got) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": want ", expected, ", got ", got));
}

absl::Status CheckPositive(absl::string_view name, float value) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return Invalid(absl::StrCat("commit, ", name), "a finite number > 0", value);
}

}  // namespace

Sequence::Sequence(const Options& options, const TrainerWords* words)
    : options_(options),
      words_(words),
      received_(options.ranks, 0),
      gathers_(options.ranks),
      pushes_(options.ranks),
      slot_users_(options.layout->slot_bytes().size(), 0),
      step_pushes_(*options.spec),
      last_commit_(options.commit_number),
      stages_(options.ranks, Stage::kPending) {}

// --- Taking commands ---

SentCommand::SentCommand(v1::Command sent) : command(std::move(sent)) {
  if (command.has_commit()) {
    client_state = std::move(*command.mutable_commit()->mutable_client_state());
    command.mutable_commit()->clear_client_state();
  }
  canonical = command.SerializeAsString();
}

int Sequence::Room(int rank) const {
  const int64_t last = first_number_ + static_cast<int64_t>(entries_.size()) - 1;
  const int64_t behind = last - received_[rank];
  if (bytes_ >= kMostBytes) return static_cast<int>(behind);
  return static_cast<int>(behind + std::max<int64_t>(0, kMostCommands - static_cast<int64_t>(entries_.size())));
}

absl::StatusOr<bool> Sequence::Submit(int rank, SentCommand sent, SteadyTime now) {
  const int64_t number = sent.command.number();
  if (number != received_[rank] + 1) {
    return Invalid(absl::StrCat("command of rank ", options_.first_rank + rank),
                   absl::StrCat("number ", received_[rank] + 1), number);
  }
  if (sent.client_state.size() > kMaxClientStateBytes) {
    return Invalid("commit, client state", absl::StrCat("at most ", kMaxClientStateBytes, " bytes"),
                   sent.client_state.size());
  }
  RETURN_IF_ERROR(CheckRunAhead(rank, sent.command));
  std::string client_state = std::move(sent.client_state);
  if (number == first_number_ + static_cast<int64_t>(entries_.size())) {
    RETURN_IF_ERROR(CheckCommand(sent.command));
    Append(rank, std::move(sent), now);
  } else {
    RETURN_IF_ERROR(Compare(rank, At(number), sent));
  }
  received_[rank] = number;
  Entry& entry = At(number);
  bytes_ += client_state.size();
  entry.client_states[rank] = std::move(client_state);
  if (++entry.arrived == options_.ranks) Agree(entry, now);
  const bool agreed = Agreed(entry);
  Enqueue(rank, entry, now);
  return agreed;
}

absl::Status Sequence::CheckRunAhead(int rank, const v1::Command& command) const {
  const bool first = command.number() == first_number_ + static_cast<int64_t>(entries_.size());
  const bool repeats = first ? Repeats(command) : At(command.number()).repeats;
  if (!command.has_commit() || repeats) return absl::OkStatus();
  const auto unanswered =
      std::count_if(commits_.begin(), commits_.end(), [&](int64_t number) { return number <= received_[rank]; });
  if (unanswered < kMostCommits) return absl::OkStatus();
  return Invalid(absl::StrCat("commit ", command.commit().commit_number(), " of rank ", options_.first_rank + rank),
                 absl::StrCat("at most ", kMostCommits, " unanswered commits"), unanswered + 1);
}

absl::Status Sequence::CheckCommand(const v1::Command& command) const {
  switch (command.kind_case()) {
    case v1::Command::kGather:
      return CheckGather(command.gather());
    case v1::Command::kPush:
      return CheckPush(command.push());
    case v1::Command::kCommit:
      return CheckCommit(command.commit());
    case v1::Command::kDiscard:
      return absl::OkStatus();
    case v1::Command::KIND_NOT_SET:
      break;
  }
  return Invalid(absl::StrCat("command ", command.number()), "a gather, push, commit or discard", "none");
}

absl::Status Sequence::CheckGather(const v1::Gather& gather) const {
  const auto& units = options_.layout->units();
  if (gather.unit() < 0 || gather.unit() >= static_cast<int>(units.size())) {
    return Invalid("gather", absl::StrCat("a unit in [0, ", units.size(), ")"), gather.unit());
  }
  const std::optional<Phase> phase = PhaseFromProto(gather.phase());
  if (!phase.has_value()) {
    return Invalid("gather", "a phase", static_cast<int>(gather.phase()));
  }
  const UnitLayout& unit = units[gather.unit()];
  const auto& slots = options_.layout->slot_bytes();
  if (gather.slot() < 0 || gather.slot() >= static_cast<int>(slots.size())) {
    return Invalid("gather", absl::StrCat("a slot in [0, ", slots.size(), ")"), gather.slot());
  }
  const int64_t needed = unit.slot_bytes[*phase];
  if (slots[gather.slot()] < needed) {
    return Invalid(absl::StrCat("gather ", options_.spec->units[gather.unit()].name),
                   absl::StrCat("a slot of at least ", needed, " bytes"), slots[gather.slot()]);
  }
  return absl::OkStatus();
}

absl::Status Sequence::CheckPush(const v1::Push& push) const {
  const auto& units = options_.layout->units();
  if (push.unit() < 0 || push.unit() >= static_cast<int>(units.size())) {
    return Invalid("push", absl::StrCat("a unit in [0, ", units.size(), ")"), push.unit());
  }
  const auto& slots = options_.layout->gradient_slot_bytes();
  if (push.slot() < 0 || push.slot() >= static_cast<int>(slots.size())) {
    return Invalid("push", absl::StrCat("a gradient slot in [0, ", slots.size(), ")"), push.slot());
  }
  const std::string& name = options_.spec->units[push.unit()].name;
  const UnitLayout& unit = units[push.unit()];
  if (unit.gradient_bytes == 0) {
    return Invalid(absl::StrCat("push ", name), "a unit with trainable parameters", "one whose parameters are frozen");
  }
  if (slots[push.slot()] < unit.gradient_bytes) {
    return Invalid(absl::StrCat("push ", name),
                   absl::StrCat("a gradient slot of at least ", unit.gradient_bytes, " bytes"), slots[push.slot()]);
  }
  const auto& absent = push.absent_parameters();
  const int count = static_cast<int>(unit.parameters.size());
  const bool ascending = std::adjacent_find(absent.begin(), absent.end(), std::greater_equal<>()) == absent.end();
  if (!ascending || (!absent.empty() && (absent[0] < 0 || absent[absent.size() - 1] >= count))) {
    return Invalid(absl::StrCat("push ", name), absl::StrCat("absent parameters ascending in [0, ", count, ")"),
                   absl::StrJoin(absent, ", "));
  }
  return step_pushes_.Check(push.unit());
}

absl::Status Sequence::CheckCommit(const v1::Commit& commit) const {
  const bool repeats = commit.commit_number() == last_commit_ && last_commit_ > 0;
  if (!repeats && commit.commit_number() != last_commit_ + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("commit: want number ", last_commit_ + 1, ", got ", commit.commit_number()));
  }
  if (commit.groups_size() != static_cast<int>(options_.spec->groups.size())) {
    return Invalid("commit", absl::StrCat("hyper-parameters of ", options_.spec->groups.size(), " groups"),
                   commit.groups_size());
  }
  for (int i = 0; i < commit.groups_size(); ++i) {
    RETURN_IF_ERROR(CheckHyperparameters(i, HyperparametersFromProto(commit.groups(i))));
  }
  if (commit.has_max_grad_norm()) RETURN_IF_ERROR(CheckPositive("maximal gradient norm", commit.max_grad_norm()));
  if (commit.has_gradient_scale()) RETURN_IF_ERROR(CheckPositive("gradient scale", commit.gradient_scale()));
  if (!commit.save() || options_.may_save) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("commit ", commit.commit_number(), ": --save-dir is required for saves"));
}

bool Sequence::Repeats(const v1::Command& command) const {
  return command.has_commit() && command.commit().commit_number() == last_commit_ && last_commit_ > 0;
}

void Sequence::Append(int rank, SentCommand sent, SteadyTime now) {
  Entry entry;
  entry.canonical = std::move(sent.canonical);
  entry.command = std::move(sent.command);
  entry.first_rank = rank;
  entry.first_arrival = now;
  entry.client_states.resize(options_.ranks);
  entry.repeats = Repeats(entry.command);
  const int64_t number = entry.command.number();
  if (entry.command.has_gather()) {
    entry.slot_users = {std::exchange(slot_users_[entry.command.gather().slot()], number)};
  } else if (entry.command.has_push()) {
    step_pushes_.Add(entry.command.push().unit());
  } else if (entry.command.has_discard()) {
    step_pushes_.Clear();
  } else if (entry.command.has_commit() && !entry.repeats) {
    entry.slot_users = slot_users_;
    last_commit_ = entry.command.commit().commit_number();
    commits_.push_back(number);
    step_pushes_.Clear();
  }
  bytes_ += entry.canonical.size();
  entries_.push_back(std::move(entry));
}

absl::Status Sequence::Compare(int rank, const Entry& entry, const SentCommand& sent) const {
  if (sent.canonical == entry.canonical) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("command ", sent.command.number(), ": rank ", options_.first_rank + entry.first_rank, " sent ",
                   CommandText(*options_.spec, entry.command), ", rank ", options_.first_rank + rank, " sent ",
                   CommandText(*options_.spec, sent.command)));
}

void Sequence::Agree(Entry& entry, SteadyTime now) {
  entry.agreed_at = now;
  if (!options_.chains_commands) return;
  chain_.Add(options_.first_rank + entry.first_rank, entry.canonical);
  entry.chained = chain_.hash();
}

void Sequence::Enqueue(int rank, const Entry& entry, SteadyTime now) {
  if (entry.repeats) return FinishEntry(entry.command.number());
  Queue& queue = entry.command.has_gather() ? gathers_[rank] : pushes_[rank];
  if (queue.numbers.empty()) queue.changed_at = now;
  queue.numbers.push_back(entry.command.number());
}

// --- Gathers ---

Sequence::Wait Sequence::GatherWait(int rank) const {
  const Queue& queue = gathers_[rank];
  if (!queue.HasNext()) return {};
  const Entry& entry = At(queue.next());
  // Pieces that still arrive in the slot cannot be released.
  if (!Agreed(entry) || BehindCommit(queue.next()) || !Finished(entry.slot_users[0])) return {};
  const int slot = entry.command.gather().slot();
  for (int peer = 0; peer < options_.ranks; ++peer) {
    if (Reached(words_->Released(peer, slot), static_cast<uint32_t>(entry.slot_users[0]))) continue;
    return {.rank = peer,
            .kind = Wait::Kind::kRelease,
            .slot = slot,
            .number = queue.next(),
            .since = std::max(entry.agreed_at, queue.changed_at)};
  }
  return {};
}

bool Sequence::GatherRunnable(int rank) const {
  const Queue& queue = gathers_[rank];
  if (stopped_ || !queue.HasNext()) return false;
  const Entry& entry = At(queue.next());
  if (!Agreed(entry) || BehindCommit(queue.next()) || !Finished(entry.slot_users[0])) return false;
  return GatherWait(rank).rank < 0;
}

const v1::Command* Sequence::BeginGather(int rank, SteadyTime now) {
  if (!GatherRunnable(rank)) return nullptr;
  Queue& queue = gathers_[rank];
  queue.changed_at = now;
  return &At(queue.numbers[queue.begun++]).command;
}

void Sequence::FinishGather(int rank, SteadyTime now) { Pop(gathers_[rank], now); }

std::vector<int> Sequence::RunnableGathers() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (GatherRunnable(rank)) ranks.push_back(rank);
  }
  return ranks;
}

bool Sequence::Gathered(int rank, int64_t number) const {
  const Queue& queue = gathers_[rank];
  return queue.numbers.empty() || queue.numbers.front() > number;
}

// --- Pushes and commits ---

Sequence::Wait Sequence::PushWait(int rank) const {
  const Queue& queue = pushes_[rank];
  if (!queue.HasNext() || queue.begun > 0) return {};
  const int64_t number = queue.next();
  const Entry& entry = At(number);
  if (!Agreed(entry) || BehindCommit(number)) return {};
  if (entry.command.has_commit()) return CommitWait(rank, number, queue);
  if (entry.command.has_discard()) return {};
  const int slot = entry.command.push().slot();
  for (int peer = 0; peer < options_.ranks; ++peer) {
    if (Reached(words_->Filled(peer, slot), static_cast<uint32_t>(number))) continue;
    return {.rank = peer,
            .kind = Wait::Kind::kGradients,
            .number = number,
            .since = std::max(entry.agreed_at, queue.changed_at)};
  }
  return {};
}

Sequence::Wait Sequence::CommitWait(int rank, int64_t number, const Queue& queue) const {
  const Entry& entry = At(number);
  // Units that are not gathered cannot be released: then the rank waits for another trainer.
  if (stages_[rank] != Stage::kPending || !Gathered(rank, number)) return {};
  for (size_t slot = 0; slot < entry.slot_users.size(); ++slot) {
    if (Reached(words_->Released(rank, slot), static_cast<uint32_t>(entry.slot_users[slot]))) continue;
    return {.rank = rank,
            .kind = Wait::Kind::kRelease,
            .slot = static_cast<int>(slot),
            .number = number,
            .since = std::max({entry.agreed_at, queue.changed_at, gathers_[rank].changed_at})};
  }
  return {};
}

std::optional<Sequence::Work> Sequence::RunnableWork(int rank) const {
  const Queue& queue = pushes_[rank];
  if (!queue.HasNext() || queue.begun > 0) return std::nullopt;
  const int64_t number = queue.next();
  const Entry& entry = At(number);
  if (!Agreed(entry) || BehindCommit(number)) return std::nullopt;
  if (entry.command.has_commit()) return CommitWork(rank);
  if (stopped_ || PushWait(rank).rank >= 0) return std::nullopt;
  return entry.command.has_discard() ? Work::kDiscard : Work::kReduce;
}

std::optional<Sequence::Work> Sequence::CommitWork(int rank) const {
  const int64_t number = pushes_[rank].numbers.front();
  if (vote_ == VoteState::kApplies) return DecidedWork(rank);
  if (stopped_ || vote_ != VoteState::kNone) return std::nullopt;
  if (stages_[rank] == Stage::kPending) {
    return Gathered(rank, number) && PushWait(rank).rank < 0 ? std::optional(Work::kSum) : std::nullopt;
  }
  return AllAt(Stage::kSummed) ? std::optional(Work::kVote) : std::nullopt;
}

std::optional<Sequence::Work> Sequence::DecidedWork(int rank) const {
  if (stages_[rank] == Stage::kSummed) return Work::kApply;
  if (amaxes_ == AmaxState::kNeeded && AllAt(Stage::kApplied)) return Work::kShareAmaxes;
  if (amaxes_ == AmaxState::kShared && stages_[rank] == Stage::kApplied) return Work::kEncode;
  return std::nullopt;
}

bool Sequence::AllAt(Stage stage) const {
  return std::all_of(stages_.begin(), stages_.end(), [stage](Stage s) { return s == stage; });
}

std::optional<Sequence::PushWork> Sequence::BeginPush(int rank) {
  const std::optional<Work> work = RunnableWork(rank);
  if (!work.has_value()) return std::nullopt;
  pushes_[rank].begun = 1;
  if (*work == Work::kSum) stages_[rank] = Stage::kSumming;
  if (*work == Work::kVote) vote_ = VoteState::kVoting;
  if (*work == Work::kApply) stages_[rank] = Stage::kApplying;
  if (*work == Work::kShareAmaxes) amaxes_ = AmaxState::kSharing;
  if (*work == Work::kEncode) stages_[rank] = Stage::kEncoding;
  const Entry& entry = At(pushes_[rank].numbers.front());
  return PushWork{.work = *work,
                  .command = &entry.command,
                  .client_states = &entry.client_states,
                  .commands = {.number = entry.command.number(), .hash = entry.chained}};
}

bool Sequence::FinishReduce(int rank, SteadyTime now) {
  const int64_t number = pushes_[rank].numbers.front();
  const bool last = At(number).finished + 1 == options_.ranks;
  Pop(pushes_[rank], now);
  return last;
}

void Sequence::FinishSum(int rank) {
  stages_[rank] = Stage::kSummed;
  pushes_[rank].begun = 0;
}

void Sequence::FinishVote(Verdict verdict) {
  vote_ = verdict == Verdict::kGivenUp ? VoteState::kGivenUp : VoteState::kApplies;
  amaxes_ = verdict == Verdict::kEncodes ? AmaxState::kNeeded : AmaxState::kUnneeded;
  for (int rank = 0; rank < options_.ranks; ++rank) pushes_[rank].begun = 0;
}

std::optional<Sequence::ClientStates> Sequence::FinishApply(int rank, SteadyTime now) {
  if (amaxes_ == AmaxState::kUnneeded) return FinishRank(rank, now);
  stages_[rank] = Stage::kApplied;
  pushes_[rank].begun = 0;
  return std::nullopt;
}

void Sequence::FinishShareAmaxes() {
  amaxes_ = AmaxState::kShared;
  for (int rank = 0; rank < options_.ranks; ++rank) pushes_[rank].begun = 0;
}

std::optional<Sequence::ClientStates> Sequence::FinishEncode(int rank, SteadyTime now) { return FinishRank(rank, now); }

std::optional<Sequence::ClientStates> Sequence::FinishRank(int rank, SteadyTime now) {
  stages_[rank] = Stage::kDone;
  std::optional<ClientStates> answered;
  if (AllAt(Stage::kDone)) {
    answered = std::exchange(At(commits_.front()).client_states, {});
    for (const std::string& state : *answered) bytes_ -= state.size();
    chain_.Forget(commits_.front());  // all daemons have voted on the same
    commits_.pop_front();
    vote_ = VoteState::kNone;
    amaxes_ = AmaxState::kUnneeded;
    std::fill(stages_.begin(), stages_.end(), Stage::kPending);
  }
  Pop(pushes_[rank], now);
  return answered;
}

std::vector<int> Sequence::RunnablePushes() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (RunnableWork(rank).has_value()) ranks.push_back(rank);
  }
  return ranks;
}

int64_t Sequence::LastCommitInFlight() const {
  const auto last =
      std::find_if(commits_.rbegin(), commits_.rend(), [&](int64_t number) { return Agreed(At(number)); });
  return last == commits_.rend() ? 0 : *last;
}

bool Sequence::Served(int rank, int64_t number) const {
  if (received_[rank] < number) return false;
  return std::none_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.command.number() <= number && !entry.command.has_gather() && entry.finished < options_.ranks;
  });
}

// --- Finishing ---

void Sequence::Pop(Queue& queue, SteadyTime now) {
  const int64_t number = queue.numbers.front();
  queue.numbers.pop_front();
  --queue.begun;
  queue.changed_at = now;
  FinishEntry(number);
}

void Sequence::FinishEntry(int64_t number) {
  ++At(number).finished;
  while (!entries_.empty() && entries_.front().finished == options_.ranks) {
    const Entry& done = entries_.front();
    bytes_ -= done.canonical.size();
    for (const std::string& state : done.client_states) bytes_ -= state.size();
    entries_.pop_front();
    ++first_number_;
  }
}

bool Sequence::Quiet() const {
  const auto busy = [](const Queue& queue) { return queue.begun > 0; };
  if (std::any_of(gathers_.begin(), gathers_.end(), busy)) return false;
  if (std::any_of(pushes_.begin(), pushes_.end(), busy)) return false;
  return stopped_ && vote_ != VoteState::kVoting && vote_ != VoteState::kApplies;
}

// --- Waiting ---

std::optional<Sequence::Wait> Sequence::Missing() const {
  for (const Entry& entry : entries_) {
    if (Agreed(entry)) continue;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      if (received_[rank] >= entry.command.number()) continue;
      // The rank's ring is not read while an engine works on its gather.
      return Wait{.rank = rank,
                  .kind = Wait::Kind::kCommand,
                  .number = entry.command.number(),
                  .since = std::max(entry.first_arrival, gathers_[rank].changed_at)};
    }
  }
  return std::nullopt;
}

std::vector<Sequence::Wait> Sequence::Waits() const {
  std::vector<Wait> waits;
  if (stopped_) return waits;
  if (const std::optional<Wait> missing = Missing(); missing.has_value()) waits.push_back(*missing);
  for (int rank = 0; rank < options_.ranks; ++rank) {
    for (const Wait& wait : {GatherWait(rank), PushWait(rank)}) {
      if (wait.rank >= 0) waits.push_back(wait);
    }
  }
  return waits;
}

int Sequence::OnlyMissing(uint32_t (TrainerWords::*word)(int rank, int slot) const, int slot, int64_t number) const {
  int missing = -1;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (Reached((words_->*word)(rank, slot), static_cast<uint32_t>(number))) continue;
    if (missing >= 0) return -1;
    missing = rank;
  }
  return missing;
}

// A rank with a gather under way does not wait in that queue yet; a rank that waits for itself waits for no other.
void Sequence::FindLateRanks(std::vector<char>& late) const {
  std::fill(late.begin(), late.end(), false);
  if (stopped_ || options_.ranks == 1) return;
  const auto set = [&](int waiting, int rank) {
    if (rank >= 0 && rank != waiting) late[rank] = true;
  };
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const Wait gather = gathers_[rank].begun == 0 ? GatherWait(rank) : Wait();
    if (gather.rank >= 0) {
      set(rank, OnlyMissing(&TrainerWords::Released, gather.slot, At(gather.number).slot_users[0]));
    }
    const Wait push = PushWait(rank);
    if (push.rank >= 0 && push.kind == Wait::Kind::kGradients) {
      set(rank, OnlyMissing(&TrainerWords::Filled, At(push.number).command.push().slot(), push.number));
    }
    set(rank, OnlyMissingCommand(rank));
  }
  if (const int rank = OnlyUnsummed(); rank >= 0) late[rank] = true;
}

int Sequence::OnlyMissingCommand(int waiting) const {
  for (const Queue* queue : {&gathers_[waiting], &pushes_[waiting]}) {
    if (queue->begun > 0 || !queue->HasNext()) continue;
    const int64_t number = queue->next();
    if (At(number).arrived != options_.ranks - 1) continue;
    return static_cast<int>(
        std::find_if(received_.begin(), received_.end(), [number](int64_t received) { return received < number; }) -
        received_.begin());
  }
  return -1;
}

int Sequence::OnlyUnsummed() const {
  if (std::count(stages_.begin(), stages_.end(), Stage::kSummed) != options_.ranks - 1) return -1;
  const auto pending = std::find(stages_.begin(), stages_.end(), Stage::kPending);
  const auto rank = static_cast<int>(pending - stages_.begin());
  return pending != stages_.end() && PushWait(rank).rank == rank ? rank : -1;
}

std::string Sequence::Describe(const Wait& wait) const {
  const std::string command =
      absl::StrCat(CommandName(*options_.spec, At(wait.number).command), " (command ", wait.number, ")");
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

absl::Status Sequence::Overdue(SteadyTime now) const {
  for (const Wait& wait : Waits()) {
    if (now < After(wait.since, options_.step_timeout)) continue;
    return absl::DeadlineExceededError(absl::StrCat("rank ", options_.first_rank + wait.rank, " did not reach ",
                                                    Describe(wait), " within ",
                                                    absl::FormatDuration(options_.step_timeout)));
  }
  return absl::OkStatus();
}

SteadyTime Sequence::NextDeadline() const {
  SteadyTime next = kNever;
  for (const Wait& wait : Waits()) next = std::min(next, After(wait.since, options_.step_timeout));
  return next;
}

std::string Sequence::WaitsFor(int rank) const {
  for (const Wait& wait : {GatherWait(rank), PushWait(rank)}) {
    if (wait.rank >= 0) return absl::StrCat("rank ", options_.first_rank + wait.rank, ": ", Describe(wait));
  }
  for (const Queue* queue : {&gathers_[rank], &pushes_[rank]}) {
    if (queue->numbers.empty() || Agreed(At(queue->numbers.front()))) continue;
    if (const std::optional<Wait> missing = Missing(); missing.has_value()) {
      return absl::StrCat("rank ", options_.first_rank + missing->rank, ": ", Describe(*missing));
    }
  }
  return "";
}

}  // namespace paramshard::server
