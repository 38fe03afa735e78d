// A sequence of two ranks, and the words of their trainers.
#ifndef PARAMSHARD_TESTS_SERVER_TRAINING_SEQUENCE_FIXTURE_H_
#define PARAMSHARD_TESTS_SERVER_TRAINING_SEQUENCE_FIXTURE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/training/sequence.h"
#include "tests/server/state/test_spec.h"
#include "tests/server/training/command.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {

// Units of the model.
inline constexpr int kA = 0;
inline constexpr int kB = 1;
inline constexpr int kBig = 3;
inline constexpr int kKept = 4;
inline constexpr int kFrozen = 5;
// Slots: two of the ring, of which the last one is large, then the resident one.
inline constexpr int kResidentSlot = 2;

inline v1::ModelSpec SequenceSpec() {
  v1::ModelSpec spec = MakeSpec(
      "m", {MakeUnit("a", {MakeParameter("a.w", {8, 4}), MakeParameter("a.b", {8})}),
            MakeUnit("b", {MakeParameter("b.w", {8, 4})}), MakeUnit("c", {MakeParameter("c.w", {8, 4})}),
            MakeUnit("big", {MakeParameter("big.w", {256, 64})}), MakeUnit("kept", {MakeParameter("kept.w", {8, 4})}),
            MakeUnit("frozen", {MakeParameter("frozen.w", {8, 4})})});
  spec.mutable_units(kFrozen)->mutable_parameters(0)->set_trainable(false);
  spec.mutable_units(kKept)->set_reshard_after_forward(false);
  spec.set_gather_slots(2);
  spec.set_gradient_slots(2);
  return spec;
}

class FakeWords : public TrainerWords {
 public:
  uint32_t Released(int rank, int slot) const override { return Find(released_, rank, slot); }
  uint32_t Filled(int rank, int slot) const override { return Find(filled_, rank, slot); }
  void Release(int rank, int slot, uint32_t number) { released_[{rank, slot}] = number; }
  void Fill(int rank, int slot, uint32_t number) { filled_[{rank, slot}] = number; }

 private:
  using Words = std::map<std::pair<int, int>, uint32_t>;
  static uint32_t Find(const Words& words, int rank, int slot) {
    const auto found = words.find({rank, slot});
    return found == words.end() ? 0 : found->second;
  }
  Words released_, filled_;
};

// A sequence of two ranks, those numbered 4 and 5 in the world.
class SequenceTest : public testing::Test {
 protected:
  static constexpr int kRanks = 2;
  static constexpr std::chrono::seconds kTimeout{60};
  static constexpr std::chrono::milliseconds kLandAfter{100};

  SequenceTest() { Restart(0); }

  void Restart(int64_t commit_number) { Restart({.commit_number = commit_number}); }
  void Restart(Sequence::Options options) {
    options.spec = &spec_;
    options.layout = &layout_;
    options.ranks = kRanks;
    options.first_rank = 4;
    options.step_timeout = absl::FromChrono(kTimeout);
    sequence_ = std::make_unique<Sequence>(options, &words_);
  }
  // Ranks of several daemons.
  void RestartEqual() { Restart({.equal_commands = true, .gathers_together = true, .chains_commands = true}); }

  absl::Status Submit(int rank, v1::Command command) { return sequence_->Submit(rank, std::move(command), now_); }
  void SubmitAll(const v1::Command& command) {
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_OK(Submit(rank, command));
  }

  // Return the ranks that could begin something now.
  std::vector<int> RunnableGathers() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (sequence_->IsGatherRunnable(rank)) ranks.push_back(rank);
    }
    return ranks;
  }
  std::vector<int> RunnablePushes() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (sequence_->IsPushRunnable(rank)) ranks.push_back(rank);
    }
    return ranks;
  }
  // Begins and finishes a rank's part of the next gather that it may serve: (target, number); (-1, 0) without one.
  using Served = std::pair<int, int64_t>;
  Served Serve(int rank) {
    const std::optional<Sequence::GatherWork> work = sequence_->BeginGather(rank, now_);
    if (!work.has_value()) return {-1, 0};
    const Served served{work->target, work->command->number()};
    sequence_->FinishGather(rank, work->target, now_);
    return served;
  }
  // Serves all gathers that may run; there are some.
  void RunGathers() {
    int served = 0;
    for (bool more = true; more;) {
      more = false;
      for (int rank = 0; rank < kRanks; ++rank) {
        const bool has_served = Serve(rank).first >= 0;
        more = more || has_served;
        served += has_served ? 1 : 0;
      }
    }
    EXPECT_GT(served, 0);
  }
  void RunReduces() {
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(BeginPush(rank), Sequence::Work::kReduce);
      EXPECT_EQ(sequence_->FinishReduce(rank, now_).empty(), rank != kRanks - 1);
    }
  }
  std::optional<Sequence::Work> BeginPush(int rank) {
    const std::optional<Sequence::PushWork> work = sequence_->BeginPush(rank);
    return work.has_value() ? std::optional(work->work) : std::nullopt;
  }
  void RunSums() {
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(BeginPush(rank), Sequence::Work::kSum);
      sequence_->FinishSum(rank);
    }
  }
  void RunVote(Sequence::Verdict verdict = Sequence::Verdict::kApplies) {
    EXPECT_EQ(BeginPush(0), Sequence::Work::kVote);
    sequence_->FinishVote(verdict);
  }
  // A commit that encodes, up to where amaxes are shared.
  void RunUntilShared() {
    SubmitAll(CommitCommand(1, 1));
    RunSums();
    RunVote(Sequence::Verdict::kEncodes);
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(BeginPush(rank), Sequence::Work::kApply);
      EXPECT_FALSE(sequence_->FinishApply(rank, now_).has_value());
    }
  }
  void RunApplies() {
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(BeginPush(rank), Sequence::Work::kApply);
      EXPECT_EQ(sequence_->FinishApply(rank, now_).has_value(), rank == kRanks - 1);
    }
  }
  void RunCommit() {
    RunSums();
    RunVote();
    RunApplies();
  }
  // Both ranks discard what they have pushed.
  void SubmitEnds() {
    for (int rank = 0; rank < kRanks; ++rank)
      EXPECT_OK(Submit(rank, DiscardCommand(sequence_->last_command(rank) + 1)));
  }
  static std::vector<std::string> Drained(const std::vector<DrainedSlot>& slots) {
    std::vector<std::string> texts;
    for (const DrainedSlot& each : slots) {
      texts.push_back(absl::StrCat("rank ", each.rank, " slot ", each.slot, " push ", each.number));
    }
    return texts;
  }
  void ReleaseAll(int slot, uint32_t number) {
    for (int rank = 0; rank < kRanks; ++rank) words_.Release(rank, slot, number);
  }
  void FillAll(int slot, uint32_t number) {
    for (int rank = 0; rank < kRanks; ++rank) words_.Fill(rank, slot, number);
  }

  void ExpectInvalid(const v1::Command& command, const std::string& message) {
    EXPECT_THAT(Submit(0, command), StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr(message)));
  }
  // The first command of an otherwise valid commit, changed.
  template <typename Change>
  void ExpectInvalidCommit(Change change, const std::string& message) {
    v1::Command command = CommitCommand(1, 1);
    change(*command.mutable_commit());
    ExpectInvalid(command, message);
  }

  const ModelSpec spec_ = Parse(SequenceSpec());
  const Layout layout_{spec_, kRanks};
  FakeWords words_;
  std::unique_ptr<Sequence> sequence_;
  SteadyTime now_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_TRAINING_SEQUENCE_FIXTURE_H_
