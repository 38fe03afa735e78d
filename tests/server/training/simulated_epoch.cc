#include "tests/server/training/simulated_epoch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/model_spec.h"
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
      kind_(size.kind),
      trainers_(size.ranks),
      ranks_(size.ranks),
      sequence_({.spec = &layout->spec(),
                 .layout = layout,
                 .ranks = size.ranks,
                 .first_rank = size.first_rank,
                 .commit_number = commit_number,
                 .step_timeout = kStepTimeout,
                 .equal_commands = size.kind != SimulatedCommands::kOwn,
                 .gathers_together = size.kind == SimulatedCommands::kEqualGatheredTogether},
                this),
      answered_(commit_number) {
  for (Trainer& trainer : trainers_) {
    trainer.released_words.resize(layout_.slot_bytes().size(), 0);
    trainer.filled_words.resize(layout_.gradient_slot_bytes().size(), 0);
    trainer.drained.resize(layout_.gradient_slot_bytes().size(), 0);
  }
  for (Rank& rank : ranks_) {
    rank.applied = rank.encoded = commit_number;
    rank.gathers.resize(size.ranks);
    rank.served.resize(size.ranks);
  }
  WritePrograms(size.commands, commit_number);
}

// --- The programs ---

void SimulatedEpoch::WritePrograms(int commands, int64_t commit_number) {
  for (int step = 0; static_cast<int>(trainers_[0].program.size()) < commands; ++step) {
    const int longest = 1 + Random(8);
    for (int rank = 0; rank < ranks(); ++rank) {
      for (int count = Random(longest + 1); is_own() && count > 0; --count) {
        if (const auto command = RandomCommand(trainers_[rank], step)) Append(trainers_[rank], *command, step);
      }
    }
    for (int count = Random(longest + 1); !is_own() && count > 0; --count) {
      const auto command = RandomCommand(trainers_[0], step);
      for (Trainer& trainer : trainers_) {
        if (command.has_value()) Append(trainer, *command, step);
      }
    }
    // Now and then a commit is sent again.
    const bool repeated = commit_number > 0 && OneIn(6);
    for (Trainer& trainer : trainers_) {
      if (repeated) Append(trainer, CommitCommand(0, commit_number), step);
    }
    const bool discards = OneIn(4) && static_cast<int>(trainers_[0].program.size()) + 1 < commands;
    if (!discards) ++commit_number;
    for (Trainer& trainer : trainers_) {
      Append(trainer, discards ? DiscardCommand(0) : CommitCommand(0, commit_number), step);
      trainer.program.back().ends_step = true;
    }
  }
}

void SimulatedEpoch::Append(Trainer& trainer, v1::Command command, int step) {
  const int64_t number = static_cast<int64_t>(trainer.program.size()) + 1;
  command.set_number(number);
  Planned planned{.command = command, .commit_before = answered_, .key = {.step = step}};
  for (const Planned& other : trainer.program) {
    if (other.ends_step && other.command.has_commit()) planned.commit_before = other.command.commit().commit_number();
    if (command.has_gather() && other.command.has_gather() &&
        other.command.gather().slot() == command.gather().slot()) {
      planned.user_before = other.command.number();
    }
    if (!command.has_push() || !other.command.has_push()) continue;
    if (other.command.push().slot() == command.push().slot()) planned.user_before = other.command.number();
    if (other.key.step == step && other.command.push().unit() == command.push().unit()) ++planned.key.ordinal;
  }
  if (command.has_push()) planned.key.unit = command.push().unit();
  trainer.program.push_back(std::move(planned));
}

std::optional<v1::Command> SimulatedEpoch::RandomCommand(const Trainer& trainer, int step) {
  const bool pushes = OneIn(2);
  for (int attempt = 0; attempt < 20; ++attempt) {
    const int unit = Random(static_cast<int>(layout_.units().size()));
    if (pushes) {
      const int slot = Random(static_cast<int>(layout_.gradient_slot_bytes().size()));
      if (layout_.units()[unit].gradient_bytes > layout_.gradient_slot_bytes()[slot]) continue;
      const auto before = std::count_if(trainer.program.begin(), trainer.program.end(), [&](const Planned& planned) {
        return planned.command.has_push() && planned.key.step == step && planned.key.unit == unit;
      });
      const std::optional<int> most = MostPushesPerStep(layout_.spec());
      if (most.has_value() && before >= *most) continue;
      return PushCommand(0, unit, slot, OneIn(4) ? std::vector<int>{0} : std::vector<int>{});
    }
    const int slot = Random(static_cast<int>(layout_.slot_bytes().size()));
    const Phase phase = kPhases[Random(static_cast<int>(kPhases.size()))];
    if (layout_.units()[unit].slot_bytes[phase] > layout_.slot_bytes()[slot]) continue;
    return GatherCommand(0, unit, slot, PhaseToProto(phase));
  }
  return std::nullopt;
}

const SimulatedEpoch::Planned* SimulatedEpoch::PushOf(int rank, const Key& key) const {
  for (const Planned& planned : trainers_[rank].program) {
    if (planned.command.has_push() && planned.key == key) return &planned;
  }
  return nullptr;
}

bool SimulatedEpoch::SentByAll(int64_t number) const {
  return std::all_of(trainers_.begin(), trainers_.end(),
                     [&](const Trainer& trainer) { return trainer.sent >= number; });
}

// --- Events ---

bool SimulatedEpoch::Step() {
  sequence_.Look(now_);
  std::vector<Event> events = Events();
  if (events.empty()) {
    // Time passes until a push is landed.
    const SteadyTime next = sequence_.NextDeadline();
    if (next == kNever || !sequence_.Overdue(next).ok()) return false;
    now_ = next;
    sequence_.Look(now_);
    events = Events();
    if (events.empty()) return false;
  }
  now_ += std::chrono::milliseconds(Random(10));
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
  const auto size = static_cast<int64_t>(trainer.program.size());
  if (trainer.sent < size && !stopped_ && !AheadOfAnswers(trainer.program[trainer.sent].command))
    events.push_back([=, this] { Send(rank); });
  // A slot may be filled just before its push is sent.
  for (int64_t number = 1; number <= std::min<int64_t>(trainer.sent + 1, size); ++number) {
    const Planned& planned = At(rank, number);
    const v1::Command& command = planned.command;
    if (command.has_push() && !trainer.filled.contains(number) &&
        trainer.drained[command.push().slot()] >= planned.user_before) {
      events.push_back([=, this] { Fill(rank, number); });
    }
    const auto ready = trainer.ready.find(number);
    const bool here = ranks() == 1 || (ready != trainer.ready.end() && ready->second == ranks() - 1);
    const bool first = planned.user_before == 0 || trainer.released.contains(planned.user_before);
    if (command.has_gather() && number <= trainer.sent && !trainer.released.contains(number) && here && first &&
        answered_ >= planned.commit_before) {
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
    EXPECT_FALSE(sequence_.BeginGather(rank, now_).has_value());
  }
  if (!pushes) {
    EXPECT_FALSE(sequence_.BeginPush(rank).has_value());
  }
  for (int target = 0; target < ranks(); ++target) {
    if (!ranks_[rank].gathers[target].empty()) events.push_back([=, this] { FinishGather(rank, target); });
  }
  if (ranks_[rank].work.has_value()) events.push_back([=, this] { FinishPush(rank); });
}

void SimulatedEpoch::Send(int rank) {
  Trainer& trainer = trainers_[rank];
  const Planned& planned = trainer.program[trainer.sent++];
  v1::Command command = planned.command;
  if (command.has_commit()) {
    const std::string state = absl::StrCat(rank, "/", command.number());
    command.mutable_commit()->set_client_state(state);
    if (planned.ends_step) trainer.client_states[command.commit().commit_number()] = state;
  }
  if (planned.ends_step) ++trainer.ends_sent;
  EXPECT_OK(sequence_.Submit(rank, command, now_));
}

void SimulatedEpoch::Release(int rank, int64_t number) {
  trainers_[rank].released.insert(number);
  trainers_[rank].released_words[At(rank, number).command.gather().slot()] = static_cast<uint32_t>(number);
}

void SimulatedEpoch::Fill(int rank, int64_t number) {
  trainers_[rank].filled.insert(number);
  trainers_[rank].filled_words[At(rank, number).command.push().slot()] = static_cast<uint32_t>(number);
}

// --- Gathers ---

void SimulatedEpoch::BeginGather(int rank) {
  const std::optional<Sequence::GatherWork> work = sequence_.BeginGather(rank, now_);
  ASSERT_TRUE(work.has_value());
  EXPECT_FALSE(stopped_);
  const int target = work->target;
  const int64_t number = work->command->number();
  ASSERT_LE(number, trainers_[target].sent);
  const Planned& planned = At(target, number);
  EXPECT_EQ(work->command->SerializeAsString(), planned.command.SerializeAsString());
  if (together()) {
    EXPECT_EQ(target, rank);
    EXPECT_TRUE(SentByAll(number));
  }
  Rank& state = ranks_[rank];
  // In order, each once.
  const std::deque<int64_t>& under_way = state.gathers[target];
  const auto begun = [&](int64_t other) {
    return state.served[target].contains(other) ||
           std::find(under_way.begin(), under_way.end(), other) != under_way.end();
  };
  for (int64_t before = 1; before < number; ++before) {
    if (At(target, before).command.has_gather()) {
      EXPECT_TRUE(begun(before));
    }
  }
  EXPECT_FALSE(begun(number));
  // It writes the target's slot, and reads this rank's planes.
  if (planned.user_before > 0) {
    EXPECT_TRUE(trainers_[target].released.contains(planned.user_before)) << "slot still used";
    for (int server = 0; server < ranks(); ++server) {
      if (together() && server != target) continue;
      EXPECT_TRUE(ranks_[server].served[target].contains(planned.user_before)) << "pieces still arrive";
    }
  }
  EXPECT_NE(state.work, Work::kApply);
  EXPECT_NE(state.work, Work::kEncode);
  EXPECT_EQ(state.encoded, planned.commit_before) << "planes of another version";
  state.gathers[target].push_back(number);
}

void SimulatedEpoch::FinishGather(int rank, int target) {
  Rank& state = ranks_[rank];
  const int64_t number = state.gathers[target].front();
  state.gathers[target].pop_front();
  state.served[target].insert(number);
  if (together()) {
    trainers_[target].ready[number] = ranks() - 1;
  } else if (target != rank) {
    ++trainers_[target].ready[number];
  }
  int served = 0;
  for (const Rank& server : ranks_) served += server.served[target].contains(number) ? 1 : 0;
  EXPECT_EQ(sequence_.FinishGather(rank, target, now_), together() || served == ranks());
}

// --- Pushes and commits ---

void SimulatedEpoch::BeginPush(int rank) {
  const std::optional<Sequence::PushWork> work = sequence_.BeginPush(rank);
  ASSERT_TRUE(work.has_value());
  EXPECT_TRUE(!stopped_ || vote_ == Vote::kApplies) << "begun after Stop";
  const v1::Command& command = *work->command;
  switch (work->work) {
    case Work::kLand:
      BeginLand(rank, *work);
      break;
    case Work::kReduce:
      BeginReduce(rank, *work);
      break;
    case Work::kDiscard:
      CheckStepDone(rank);
      EXPECT_TRUE(command.has_discard());
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
  ranks_[rank].commit = command.commit().commit_number();
}

std::vector<SimulatedEpoch::Key> SimulatedEpoch::PushesOf(int step) const {
  std::set<Key> keys;
  for (const Trainer& trainer : trainers_) {
    for (const Planned& planned : trainer.program) {
      if (planned.command.has_push() && planned.key.step == step) keys.insert(planned.key);
    }
  }
  return {keys.begin(), keys.end()};
}

void SimulatedEpoch::BeginReduce(int rank, const Sequence::PushWork& work) {
  Rank& state = ranks_[rank];
  Key key{.step = state.step, .unit = work.command->push().unit()};
  for (const Key& before : state.accumulated) key.ordinal += before.unit == key.unit ? 1 : 0;
  const std::vector<Key> all = PushesOf(state.step);
  ASSERT_TRUE(std::find(all.begin(), all.end(), key) != all.end()) << "no rank makes it";
  const int parameters = static_cast<int>(layout_.spec().units[key.unit].parameters.size());
  bool has_absent = false;
  for (int peer = 0; peer < ranks(); ++peer) {
    const Trainer& trainer = trainers_[peer];
    const Planned* const push = PushOf(peer, key);
    if (push == nullptr) {
      EXPECT_GT(trainer.ends_sent, key.step) << "it may still come";
      ASSERT_FALSE(work.absent.empty());
      EXPECT_EQ(static_cast<int>(work.absent[peer].size()), parameters);
      has_absent = true;
      continue;
    }
    const int64_t number = push->command.number();
    EXPECT_LE(number, trainer.sent);
    EXPECT_EQ(push->commit_before, answered_) << "gradients of the next step";
    EXPECT_TRUE(trainer.filled.contains(number));
    EXPECT_EQ(work.slots[peer], push->command.push().slot());
    const auto& absent = push->command.push().absent_parameters();
    has_absent = has_absent || !absent.empty();
    if (!work.absent.empty()) {
      EXPECT_TRUE(std::equal(absent.begin(), absent.end(), work.absent[peer].begin(), work.absent[peer].end()));
    }
    if (state.landed.contains({peer, number})) continue;
    EXPECT_EQ(trainer.filled_words[push->command.push().slot()], number) << "read after it was filled anew";
  }
  EXPECT_EQ(!work.absent.empty(), has_absent);
  state.key = key;
}

void SimulatedEpoch::BeginLand(int rank, const Sequence::PushWork& work) {
  EXPECT_TRUE(is_own());
  ASSERT_EQ(work.slots.size(), 1u);
  const Trainer& trainer = trainers_[work.source];
  const int64_t number = trainer.filled_words[work.slots[0]];
  ASSERT_TRUE(trainer.filled.contains(number));
  const Planned& push = At(work.source, number);
  EXPECT_EQ(push.command.push().unit(), work.command->push().unit());
  EXPECT_LE(number, trainer.sent);
  EXPECT_LT(trainer.drained[work.slots[0]], number);
  EXPECT_FALSE(ranks_[rank].landed.contains({work.source, number})) << "landed twice";
  EXPECT_EQ(push.key.step, ranks_[rank].step);
  ranks_[rank].source = work.source;
  ranks_[rank].landing = number;
}

void SimulatedEpoch::CheckStepDone(int rank) const {
  std::vector<Key> accumulated = ranks_[rank].accumulated;
  std::sort(accumulated.begin(), accumulated.end());
  EXPECT_EQ(accumulated, PushesOf(ranks_[rank].step));
  for (const Trainer& trainer : trainers_) EXPECT_GT(trainer.ends_sent, ranks_[rank].step);
}

void SimulatedEpoch::CheckSum(int rank, const v1::Command& command) const {
  EXPECT_EQ(command.commit().commit_number(), answered_ + 1);
  EXPECT_FALSE(ranks_[rank].summed);
  CheckStepDone(rank);
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
  // The planes are not read: neither by a gather nor by the rank's trainer, which copies its own pieces.
  for (int target = 0; target < ranks(); ++target) {
    EXPECT_THAT(state.gathers[target], IsEmpty());
    if (together() && target != rank) continue;
    for (const Planned& planned : trainers_[target].program) {
      if (!planned.command.has_gather() || planned.commit_before >= command.commit().commit_number()) continue;
      EXPECT_TRUE(state.served[target].contains(planned.command.number()));
      EXPECT_TRUE(trainers_[target].released.contains(planned.command.number())) << "planes still read by a trainer";
    }
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
  for (const std::deque<int64_t>& gathers : ranks_[rank].gathers) EXPECT_THAT(gathers, IsEmpty());
}

void SimulatedEpoch::NoteRead(int owner, int source, int64_t number) {
  trainers_[source].readers[number].insert(owner);
}

void SimulatedEpoch::TakeDrained(const std::vector<DrainedSlot>& drained) {
  for (const DrainedSlot& each : drained) {
    EXPECT_EQ(static_cast<int>(trainers_[each.rank].readers[each.number].size()), ranks()) << "still read";
    EXPECT_EQ(At(each.rank, each.number).command.push().slot(), each.slot);
    EXPECT_LT(trainers_[each.rank].drained[each.slot], each.number) << "drained twice";
    trainers_[each.rank].drained[each.slot] = each.number;
  }
}

void SimulatedEpoch::FinishPush(int rank) {
  Rank& state = ranks_[rank];
  const Work work = *std::exchange(state.work, std::nullopt);
  if (work == Work::kReduce) {
    state.accumulated.push_back(state.key);
    for (int peer = 0; peer < ranks(); ++peer) {
      if (const Planned* const push = PushOf(peer, state.key)) NoteRead(rank, peer, push->command.number());
    }
    TakeDrained(sequence_.FinishReduce(rank, now_));
  } else if (work == Work::kLand) {
    // There may be no memory for it.
    const bool landed = !OneIn(8);
    if (landed) state.landed.insert({state.source, state.landing});
    if (landed) NoteRead(rank, state.source, state.landing);
    TakeDrained(sequence_.FinishLand(rank, landed, now_));
  } else if (work == Work::kDiscard) {
    state.accumulated.clear();
    ++state.step;
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
  const int64_t commit_number = ranks_[rank].commit;
  ranks_[rank].applied = commit_number;
  const bool is_done = amaxes_ == Amaxes::kUnneeded;
  if (is_done) ranks_[rank].encoded = commit_number;
  if (is_done) ++ranks_[rank].step;
  ranks_[rank].summed = false;
  ranks_[rank].accumulated.clear();
  ExpectAnswer(commit_number, sequence_.FinishApply(rank, now_));
}

void SimulatedEpoch::FinishEncode(int rank) {
  const int64_t commit_number = ranks_[rank].commit;
  ranks_[rank].encoded = commit_number;
  ++ranks_[rank].step;
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
  for (const Rank& rank : ranks_) {
    running = running || rank.work.has_value();
    for (const std::deque<int64_t>& gathers : rank.gathers) running = running || !gathers.empty();
  }
  const bool decided = vote_ == Vote::kVoting || vote_ == Vote::kApplies;
  EXPECT_EQ(sequence_.Quiet(), stopped_ && !running && !decided);
  const bool in_flight = std::all_of(trainers_.begin(), trainers_.end(), [&](const Trainer& trainer) {
    return !trainer.client_states.empty() && trainer.client_states.rbegin()->first > answered_;
  });
  EXPECT_EQ(sequence_.LastCommitInFlight() != 0, in_flight);
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
  for (int rank = 0; rank < ranks(); ++rank) {
    const Trainer& trainer = trainers_[rank];
    EXPECT_EQ(trainer.sent, static_cast<int>(trainer.program.size())) << "rank " << rank;
    for (const Planned& planned : trainer.program) {
      const int64_t number = planned.command.number();
      SCOPED_TRACE(absl::StrCat("rank ", rank, ": ", planned.command.ShortDebugString()));
      if (planned.command.has_gather()) {
        EXPECT_TRUE(ranks_[rank].served[rank].contains(number));
        EXPECT_TRUE(trainer.released.contains(number));
        EXPECT_TRUE(sequence_.IsServed(rank, number));
      }
      if (planned.command.has_push()) {
        EXPECT_GE(trainer.drained[planned.command.push().slot()], number);
      }
      if (planned.command.has_commit()) {
        EXPECT_LE(planned.command.commit().commit_number(), answered_);
      }
    }
    EXPECT_EQ(ranks_[rank].step, trainer.ends_sent);
    EXPECT_EQ(sequence_.WaitsFor(rank), "");
    EXPECT_FALSE(sequence_.Pending(rank));
    EXPECT_EQ(sequence_.Room(rank), Sequence::kMostCommands);
    EXPECT_TRUE(sequence_.Served(rank, trainer.sent));
    EXPECT_TRUE(sequence_.CarriedOut(sequence_.LastPoint(rank)));
  }
  EXPECT_EQ(sequence_.NextDeadline(), kNever);
}

void SimulatedEpoch::ExpectQuiet() const {
  EXPECT_TRUE(sequence_.Quiet());
  for (const Rank& rank : ranks_) EXPECT_EQ(rank.applied, answered_) << "applied by some, not by all";
  for (const Rank& rank : ranks_) EXPECT_EQ(rank.encoded, answered_) << "encoded by some, not by all";
}

void SimulatedEpoch::ExpectHungIsNamed() const {
  bool is_done = true;
  for (const Trainer& trainer : trainers_)
    is_done = is_done && trainer.sent == static_cast<int>(trainer.program.size());
  const Trainer& hung = trainers_[*hung_];
  if (is_done && ranks_[*hung_].step == hung.ends_sent) return;
  const SteadyTime deadline = sequence_.NextDeadline();
  ASSERT_LT(deadline, kNever);
  EXPECT_OK(sequence_.Overdue(deadline - std::chrono::nanoseconds(1)));
  EXPECT_THAT(sequence_.Overdue(deadline),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr(absl::StrCat("rank ", first_rank_ + *hung_, " did not"))));
}

}  // namespace paramshard::server
