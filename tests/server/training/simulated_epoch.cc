#include "tests/server/training/simulated_epoch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/proto_enums.h"
#include "common/shared_memory/words.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/training/command.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Work = Sequence::Work;

SimulatedEpoch::SimulatedEpoch(const Layout* layout, const SimulationSize& size, int64_t commit_number,
                               std::mt19937_64* random)
    : layout_(*layout),
      random_(random),
      first_rank_(size.first_rank),
      step_pushes_(layout->spec()),
      trainers_(size.ranks),
      ranks_(size.ranks),
      drained_(layout->gradient_slot_bytes().size(), 0),
      sequence_({.spec = &layout->spec(),
                 .layout = layout,
                 .ranks = size.ranks,
                 .first_rank = size.first_rank,
                 .commit_number = commit_number,
                 .step_timeout = kStepTimeout},
                this),
      answered_(commit_number) {
  for (Trainer& trainer : trainers_) {
    trainer.released_words.resize(layout_.slot_bytes().size(), 0);
    trainer.filled_words.resize(drained_.size(), 0);
  }
  for (Rank& rank : ranks_) rank.applied = rank.encoded = commit_number;
  WriteProgram(size.commands, commit_number);
}

// --- The program ---

void SimulatedEpoch::WriteProgram(int commands, int64_t commit_number) {
  for (int64_t number = 1; number <= commands; ++number) {
    if (OneIn(6)) {
      // Now and then a commit is sent again.
      const bool repeated = commit_number > 0 && OneIn(6);
      program_.push_back(CommitCommand(number, repeated ? commit_number : ++commit_number));
      if (repeated) continue;
      new_commits_.insert(number);
      step_pushes_.Clear();
    } else if (OneIn(12)) {
      program_.push_back(DiscardCommand(number));
      step_pushes_.Clear();
    } else {
      program_.push_back(OneIn(3) && MayPush() ? RandomPush(number) : RandomGather(number));
    }
  }
}

v1::Command SimulatedEpoch::RandomGather(int64_t number) {
  while (true) {
    const int unit = Random(static_cast<int>(layout_.units().size()));
    const int slot = Random(static_cast<int>(layout_.slot_bytes().size()));
    const Phase phase = kPhases[Random(static_cast<int>(kPhases.size()))];
    if (layout_.units()[unit].slot_bytes[phase] > layout_.slot_bytes()[slot]) continue;
    return GatherCommand(number, unit, slot, PhaseToProto(phase));
  }
}

bool SimulatedEpoch::MayPush() const {
  for (int unit = 0; unit < static_cast<int>(layout_.units().size()); ++unit) {
    if (step_pushes_.Check(unit).ok()) return true;
  }
  return false;
}

v1::Command SimulatedEpoch::RandomPush(int64_t number) {
  while (true) {
    const int unit = Random(static_cast<int>(layout_.units().size()));
    const int slot = Random(static_cast<int>(layout_.gradient_slot_bytes().size()));
    if (layout_.units()[unit].gradient_bytes > layout_.gradient_slot_bytes()[slot]) continue;
    if (!step_pushes_.Check(unit).ok()) continue;
    step_pushes_.Add(unit);
    return PushCommand(number, unit, slot, OneIn(4) ? std::vector<int>{0} : std::vector<int>{});
  }
}

int64_t SimulatedEpoch::CommitBefore(int64_t number) const {
  const auto next = new_commits_.lower_bound(number);
  if (next != new_commits_.begin()) return At(*std::prev(next)).commit().commit_number();
  return new_commits_.empty() ? answered_ : At(*new_commits_.begin()).commit().commit_number() - 1;
}

int64_t SimulatedEpoch::UserBefore(int64_t number) const {
  const v1::Command& command = At(number);
  for (int64_t before = number - 1; before > 0; --before) {
    const v1::Command& other = At(before);
    if (command.has_gather() && other.has_gather() && other.gather().slot() == command.gather().slot()) return before;
    if (command.has_push() && other.has_push() && other.push().slot() == command.push().slot()) return before;
  }
  return 0;
}

bool SimulatedEpoch::SentByAll(int64_t number) const {
  return std::all_of(trainers_.begin(), trainers_.end(),
                     [&](const Trainer& trainer) { return trainer.sent >= number; });
}

// --- Events ---

bool SimulatedEpoch::Step() {
  std::vector<Event> events = Events();
  if (events.empty()) return false;
  now_ += std::chrono::milliseconds(Random(100));
  events[Random(static_cast<int>(events.size()))]();
  CheckState();
  return true;
}

void SimulatedEpoch::Stop() {
  stopped_ = true;
  sequence_.Stop();
}

std::vector<SimulatedEpoch::Event> SimulatedEpoch::Events() {
  std::vector<Event> events;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (hung_ != rank) AddTrainerEvents(rank, events);
    AddDaemonEvents(rank, events);
  }
  return events;
}

bool SimulatedEpoch::AheadOfAnswers(const v1::Command& command) const {
  return command.has_commit() && command.commit().commit_number() > answered_ + Sequence::kMostCommits;
}

// A trainer sends in order, and writes its words whenever the daemon's words let it.
void SimulatedEpoch::AddTrainerEvents(int rank, std::vector<Event>& events) {
  const Trainer& trainer = trainers_[rank];
  const int64_t size = static_cast<int64_t>(program_.size());
  if (trainer.sent < size && !stopped_ && !AheadOfAnswers(program_[trainer.sent]))
    events.push_back([=, this] { Send(rank); });
  // A slot may be filled just before its push is sent.
  for (int64_t number = 1; number <= std::min<int64_t>(trainer.sent + 1, size); ++number) {
    const v1::Command& command = At(number);
    const int64_t before = UserBefore(number);
    if (command.has_push() && !trainer.filled.contains(number) && drained_[command.push().slot()] >= before) {
      events.push_back([=, this] { Fill(rank, number); });
    }
    const auto ready = trainer.ready.find(number);
    const bool here = ranks() == 1 || (ready != trainer.ready.end() && ready->second == ranks() - 1);
    const bool first = before == 0 || trainer.released.contains(before);
    if (command.has_gather() && number <= trainer.sent && !trainer.released.contains(number) && here && first &&
        answered_ >= CommitBefore(number)) {
      events.push_back([=, this] { Release(rank, number); });
    }
  }
}

void SimulatedEpoch::AddDaemonEvents(int rank, std::vector<Event>& events) {
  const bool gathers = sequence_.IsGatherRunnable(rank);
  const bool pushes = sequence_.IsPushRunnable(rank);
  if (gathers) events.push_back([=, this] { BeginGather(rank); });
  if (pushes) events.push_back([=, this] { BeginPush(rank); });
  if (!gathers) {
    EXPECT_EQ(sequence_.BeginGather(rank, now_), nullptr);
  }
  if (!pushes) {
    EXPECT_FALSE(sequence_.BeginPush(rank).has_value());
  }
  if (!ranks_[rank].gathers.empty()) events.push_back([=, this] { FinishGather(rank); });
  if (ranks_[rank].work.has_value()) events.push_back([=, this] { FinishPush(rank); });
}

void SimulatedEpoch::Send(int rank) {
  Trainer& trainer = trainers_[rank];
  v1::Command command = program_[trainer.sent++];
  if (command.has_commit()) {
    const std::string state = absl::StrCat(rank, "/", command.number());
    command.mutable_commit()->set_client_state(state);
    if (NewCommit(command.number())) trainer.client_states[command.commit().commit_number()] = state;
  }
  EXPECT_THAT(sequence_.Submit(rank, command, now_), IsOkAndHolds(SentByAll(command.number())));
}

void SimulatedEpoch::Release(int rank, int64_t number) {
  trainers_[rank].released.insert(number);
  trainers_[rank].released_words[At(number).gather().slot()] = static_cast<uint32_t>(number);
}

void SimulatedEpoch::Fill(int rank, int64_t number) {
  trainers_[rank].filled.insert(number);
  trainers_[rank].filled_words[At(number).push().slot()] = static_cast<uint32_t>(number);
}

// --- Gathers ---

void SimulatedEpoch::BeginGather(int rank) {
  const v1::Command* command = sequence_.BeginGather(rank, now_);
  ASSERT_NE(command, nullptr);
  EXPECT_FALSE(stopped_);
  const int64_t number = command->number();
  Rank& state = ranks_[rank];
  EXPECT_TRUE(SentByAll(number));
  // In order, each once.
  for (int64_t before = 1; before < number; ++before) {
    if (At(before).has_gather()) {
      EXPECT_TRUE(state.begun.contains(before));
    }
  }
  EXPECT_TRUE(state.begun.insert(number).second);
  // It writes the slot of every peer, and reads this rank's planes.
  if (const int64_t before = UserBefore(number); before > 0) {
    for (const Trainer& trainer : trainers_) EXPECT_TRUE(trainer.released.contains(before)) << "slot still used";
    for (const Rank& other : ranks_) EXPECT_TRUE(other.gathered.contains(before)) << "pieces still arrive";
  }
  EXPECT_NE(state.work, Work::kApply);
  EXPECT_NE(state.work, Work::kEncode);
  EXPECT_EQ(state.encoded, CommitBefore(number)) << "planes of another version";
  state.gathers.push_back(number);
}

void SimulatedEpoch::FinishGather(int rank) {
  const int64_t number = ranks_[rank].gathers.front();
  ranks_[rank].gathers.pop_front();
  ranks_[rank].gathered.insert(number);
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer != rank) ++trainers_[peer].ready[number];
  }
  sequence_.FinishGather(rank, now_);
}

// --- Pushes and commits ---

void SimulatedEpoch::BeginPush(int rank) {
  const std::optional<Sequence::PushWork> work = sequence_.BeginPush(rank);
  ASSERT_TRUE(work.has_value());
  const v1::Command& command = *work->command;
  EXPECT_TRUE(SentByAll(command.number()));
  for (int64_t before = 1; before < command.number(); ++before) {
    if (At(before).has_push()) {
      EXPECT_TRUE(ranks_[rank].reduced.contains(before));
    }
  }
  EXPECT_TRUE(!stopped_ || vote_ == Vote::kApplies) << "begun after Stop";
  switch (work->work) {
    case Work::kReduce:
      CheckReduce(rank, command);
      break;
    case Work::kDiscard:
      CheckDiscard(rank, command);
      break;
    case Work::kSum:
      CheckSum(rank, command);
      break;
    case Work::kVote:
      CheckVote(command);
      vote_ = Vote::kVoting;
      break;
    case Work::kApply:
      CheckApply(rank, command);
      break;
    case Work::kShareAmaxes:
      CheckShareAmaxes(command);
      amaxes_ = Amaxes::kSharing;
      break;
    case Work::kEncode:
      CheckEncode(rank, command);
      break;
  }
  ranks_[rank].work = work->work;
  ranks_[rank].work_command = command;
}

void SimulatedEpoch::CheckReduce(int rank, const v1::Command& command) const {
  const int64_t number = command.number();
  EXPECT_FALSE(ranks_[rank].reduced.contains(number));
  EXPECT_EQ(answered_, CommitBefore(number)) << "gradients of the next step";
  for (const Trainer& trainer : trainers_) {
    EXPECT_EQ(trainer.filled_words[command.push().slot()], number)
        << "read before it was filled, or after it was filled anew";
  }
}

std::vector<int64_t> SimulatedEpoch::PushesBefore(int64_t number) const {
  std::vector<int64_t> pushes;
  for (int64_t before = number - 1; before > 0 && !NewCommit(before) && !At(before).has_discard(); --before) {
    if (At(before).has_push()) pushes.insert(pushes.begin(), before);
  }
  return pushes;
}

void SimulatedEpoch::CheckDiscard(int rank, const v1::Command& command) const {
  EXPECT_EQ(answered_, CommitBefore(command.number())) << "gradients of another step";
  EXPECT_FALSE(ranks_[rank].discarded.contains(command.number()));
  EXPECT_EQ(ranks_[rank].accumulated, PushesBefore(command.number()));
}

void SimulatedEpoch::CheckSum(int rank, const v1::Command& command) const {
  EXPECT_EQ(command.commit().commit_number(), answered_ + 1);
  EXPECT_FALSE(ranks_[rank].summed);
  EXPECT_EQ(ranks_[rank].accumulated, PushesBefore(command.number()));
}

void SimulatedEpoch::CheckVote(const v1::Command& command) const {
  EXPECT_EQ(vote_, Vote::kNone);
  EXPECT_EQ(command.commit().commit_number(), answered_ + 1);
  for (const Rank& rank : ranks_) EXPECT_TRUE(rank.summed);
}

void SimulatedEpoch::CheckApply(int rank, const v1::Command& command) const {
  const Rank& state = ranks_[rank];
  EXPECT_EQ(vote_, Vote::kApplies);
  EXPECT_EQ(state.applied, answered_) << "applied twice";
  EXPECT_EQ(command.commit().commit_number(), answered_ + 1);
  // The planes are not read: neither by the gather thread nor by the trainer, which copies its own pieces.
  EXPECT_THAT(state.gathers, IsEmpty());
  for (int64_t before = 1; before < command.number(); ++before) {
    if (!At(before).has_gather()) continue;
    EXPECT_TRUE(state.gathered.contains(before));
    EXPECT_TRUE(trainers_[rank].released.contains(before)) << "planes still read by the trainer";
  }
}

void SimulatedEpoch::CheckShareAmaxes(const v1::Command& command) const {
  EXPECT_EQ(vote_, Vote::kApplies);
  EXPECT_EQ(amaxes_, Amaxes::kNeeded);
  for (const Rank& rank : ranks_)
    EXPECT_EQ(rank.applied, command.commit().commit_number()) << "shared before all applied";
}

void SimulatedEpoch::CheckEncode(int rank, const v1::Command& command) const {
  EXPECT_EQ(amaxes_, Amaxes::kShared);
  EXPECT_EQ(ranks_[rank].applied, command.commit().commit_number());
  EXPECT_EQ(ranks_[rank].encoded, answered_) << "encoded twice";
  EXPECT_THAT(ranks_[rank].gathers, IsEmpty());
}

void SimulatedEpoch::FinishPush(int rank) {
  Rank& state = ranks_[rank];
  const Work work = *std::exchange(state.work, std::nullopt);
  const int64_t number = state.work_command.number();
  if (work == Work::kReduce) {
    state.reduced.insert(number);
    state.accumulated.push_back(number);
    const bool last =
        std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& r) { return r.reduced.contains(number); });
    EXPECT_EQ(sequence_.FinishReduce(rank, now_), last);
    if (last) drained_[state.work_command.push().slot()] = number;
  } else if (work == Work::kDiscard) {
    state.discarded.insert(number);
    state.accumulated.clear();
    sequence_.FinishDiscard(rank, now_);
  } else if (work == Work::kSum) {
    state.summed = true;
    sequence_.FinishSum(rank);
  } else if (work == Work::kVote) {
    FinishVote();
  } else if (work == Work::kApply) {
    FinishApply(rank);
  } else if (work == Work::kShareAmaxes) {
    amaxes_ = Amaxes::kShared;
    sequence_.FinishShareAmaxes();
  } else {
    FinishEncode(rank);
  }
}

// A vote that fails ends the epoch: the daemon stops before it says so.
void SimulatedEpoch::FinishVote() {
  const bool applies = !OneIn(30);
  if (!applies) Stop();
  vote_ = applies ? Vote::kApplies : Vote::kGivenUp;
  amaxes_ = applies && OneIn(2) ? Amaxes::kNeeded : Amaxes::kUnneeded;
  using Verdict = Sequence::Verdict;
  const Verdict applied = amaxes_ == Amaxes::kNeeded ? Verdict::kEncodes : Verdict::kApplies;
  sequence_.FinishVote(applies ? applied : Verdict::kGivenUp);
}

void SimulatedEpoch::FinishApply(int rank) {
  const int64_t commit_number = ranks_[rank].work_command.commit().commit_number();
  ranks_[rank].applied = commit_number;
  if (amaxes_ == Amaxes::kUnneeded) ranks_[rank].encoded = commit_number;
  ranks_[rank].summed = false;
  ranks_[rank].accumulated.clear();
  ExpectAnswer(commit_number, sequence_.FinishApply(rank, now_));
}

void SimulatedEpoch::FinishEncode(int rank) {
  const int64_t commit_number = ranks_[rank].work_command.commit().commit_number();
  ranks_[rank].encoded = commit_number;
  ExpectAnswer(commit_number, sequence_.FinishEncode(rank, now_));
}

void SimulatedEpoch::ExpectAnswer(int64_t commit_number, const std::optional<Sequence::ClientStates>& states) {
  const bool last = states.has_value();
  EXPECT_EQ(last, std::all_of(ranks_.begin(), ranks_.end(),
                              [&](const Rank& state) { return state.encoded == commit_number; }));
  if (!last) return;
  for (int peer = 0; peer < ranks(); ++peer) {
    EXPECT_EQ(states->at(peer), trainers_[peer].client_states.at(commit_number));
  }
  EXPECT_EQ(commit_number, answered_ + 1) << "answered out of order";
  answered_ = commit_number;
  vote_ = Vote::kNone;
  amaxes_ = Amaxes::kUnneeded;
}

// --- What holds after every event ---

void SimulatedEpoch::CheckState() {
  bool running = false;
  for (const Rank& rank : ranks_) running = running || !rank.gathers.empty() || rank.work.has_value();
  const bool decided = vote_ == Vote::kVoting || vote_ == Vote::kApplies;
  EXPECT_EQ(sequence_.Quiet(), stopped_ && !running && !decided);
  const auto unanswered = std::find_if(new_commits_.begin(), new_commits_.end(),
                                       [&](int64_t number) { return At(number).commit().commit_number() > answered_; });
  EXPECT_EQ(sequence_.LastCommitInFlight() != 0, unanswered != new_commits_.end() && SentByAll(*unanswered));
  for (int rank = 0; rank < ranks(); ++rank) {
    EXPECT_EQ(sequence_.last_command(rank), trainers_[rank].sent);
    EXPECT_GE(ranks_[rank].applied, answered_);
    EXPECT_LE(ranks_[rank].applied, answered_ + 1);
  }
  // Trainers that behave are never late.
  EXPECT_OK(sequence_.Overdue(now_));
}

// --- Ends ---

void SimulatedEpoch::ExpectComplete() const {
  for (int64_t number = 1; number <= static_cast<int64_t>(program_.size()); ++number) {
    const v1::Command& command = At(number);
    SCOPED_TRACE(command.ShortDebugString());
    EXPECT_TRUE(SentByAll(number));
    for (int rank = 0; rank < ranks(); ++rank) {
      if (command.has_gather()) {
        EXPECT_TRUE(ranks_[rank].gathered.contains(number));
      }
      if (command.has_gather()) {
        EXPECT_TRUE(trainers_[rank].released.contains(number));
      }
      if (command.has_push()) {
        EXPECT_TRUE(ranks_[rank].reduced.contains(number));
      }
      if (command.has_discard()) {
        EXPECT_TRUE(ranks_[rank].discarded.contains(number));
      }
    }
    if (command.has_commit()) {
      EXPECT_LE(command.commit().commit_number(), answered_);
    }
  }
  EXPECT_EQ(sequence_.NextDeadline(), kNever);
  for (int rank = 0; rank < ranks(); ++rank) EXPECT_EQ(sequence_.WaitsFor(rank), "");
}

void SimulatedEpoch::ExpectQuiet() const {
  EXPECT_TRUE(sequence_.Quiet());
  for (const Rank& rank : ranks_) EXPECT_EQ(rank.applied, answered_) << "applied by some, not by all";
  for (const Rank& rank : ranks_) EXPECT_EQ(rank.encoded, answered_) << "encoded by some, not by all";
}

void SimulatedEpoch::ExpectHungIsNamed() const {
  const auto done = [this](int64_t number) {
    const v1::Command& command = At(number);
    if (!SentByAll(number)) return false;
    if (command.has_commit()) return command.commit().commit_number() <= answered_;
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
      return rank.gathered.contains(number) || rank.reduced.contains(number) || rank.discarded.contains(number);
    });
  };
  bool waiting = false;
  for (int64_t number = 1; number <= static_cast<int64_t>(program_.size()); ++number)
    waiting = waiting || !done(number);
  const SteadyTime deadline = sequence_.NextDeadline();
  EXPECT_EQ(deadline < kNever, waiting);
  if (!waiting) return;
  EXPECT_OK(sequence_.Overdue(deadline - std::chrono::nanoseconds(1)));
  EXPECT_THAT(sequence_.Overdue(deadline),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr(absl::StrCat("rank ", first_rank_ + *hung_, " did not"))));
}

}  // namespace paramshard::server
