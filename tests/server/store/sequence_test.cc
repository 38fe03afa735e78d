#include "server/store/sequence.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/command_text.h"
#include "tests/server/store/command.h"
#include "tests/server/store/test_spec.h"
#include "tests/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;

using Verdict = Sequence::Verdict;
using Work = Sequence::Work;

// Units of the model.
constexpr int kA = 0;
constexpr int kB = 1;
constexpr int kBig = 3;
constexpr int kKept = 4;
constexpr int kFrozen = 5;
// Slots: two of the ring, of which the last one is large, then the resident one.
constexpr int kResidentSlot = 2;

v1::ModelSpec TestSpec() {
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

  SequenceTest() { Restart(0); }

  void Restart(int64_t commit_number) {
    sequence_ = std::make_unique<Sequence>(Sequence::Options{.spec = &spec_,
                                                             .layout = &layout_,
                                                             .ranks = kRanks,
                                                             .first_rank = 4,
                                                             .commit_number = commit_number,
                                                             .step_timeout = absl::FromChrono(kTimeout)},
                                           &words_);
  }

  absl::StatusOr<bool> Submit(int rank, v1::Command command) {
    return sequence_->Submit(rank, std::move(command), now_);
  }
  void SubmitAll(const v1::Command& command) {
    EXPECT_THAT(Submit(0, command), IsOkAndHolds(false));
    EXPECT_THAT(Submit(1, command), IsOkAndHolds(true));
  }

  // Begins and finishes a rank's next gather; its number, 0 when there is none.
  int64_t RunGather(int rank) {
    const v1::Command* command = sequence_->BeginGather(rank, now_);
    if (command == nullptr) return 0;
    const int64_t number = command->number();
    sequence_->FinishGather(rank, now_);
    return number;
  }
  void RunGathers() {
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_GT(RunGather(rank), 0);
  }
  void RunReduces() {
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(BeginPush(rank), Work::kReduce);
      EXPECT_EQ(sequence_->FinishReduce(rank, now_), rank == kRanks - 1);
    }
  }
  std::optional<Work> BeginPush(int rank) {
    const std::optional<Sequence::PushWork> work = sequence_->BeginPush(rank);
    return work.has_value() ? std::optional(work->work) : std::nullopt;
  }
  void RunSums() {
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(BeginPush(rank), Work::kSum);
      sequence_->FinishSum(rank);
    }
  }
  void RunVote(Verdict verdict = Verdict::kApplies) {
    EXPECT_EQ(BeginPush(0), Work::kVote);
    sequence_->FinishVote(verdict);
  }
  // A commit that encodes, up to where amaxes are shared.
  void RunUntilShared() {
    SubmitAll(CommitCommand(1, 1));
    RunSums();
    RunVote(Verdict::kEncodes);
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(BeginPush(rank), Work::kApply);
      EXPECT_FALSE(sequence_->FinishApply(rank, now_).has_value());
    }
  }
  void RunApplies() {
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(BeginPush(rank), Work::kApply);
      EXPECT_EQ(sequence_->FinishApply(rank, now_).has_value(), rank == kRanks - 1);
    }
  }
  void RunCommit() {
    RunSums();
    RunVote();
    RunApplies();
  }
  void ReleaseAll(int slot, uint32_t number) {
    for (int rank = 0; rank < kRanks; ++rank) words_.Release(rank, slot, number);
  }
  void FillAll(int slot, uint32_t number) {
    for (int rank = 0; rank < kRanks; ++rank) words_.Fill(rank, slot, number);
  }

  void ExpectInvalid(const v1::Command& command, const std::string& message) {
    EXPECT_THAT(Submit(0, command), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
  // The first command of an otherwise valid commit, changed.
  template <typename Change>
  void ExpectInvalidCommit(Change change, const std::string& message) {
    v1::Command command = CommitCommand(1, 1);
    change(*command.mutable_commit());
    ExpectInvalid(command, message);
  }

  const ModelSpec spec_ = Parse(TestSpec());
  const Layout layout_{spec_, kRanks};
  FakeWords words_;
  std::unique_ptr<Sequence> sequence_;
  SteadyTime now_;
};

// --- Agreement ---

TEST_F(SequenceTest, ACommandIsAgreedWhenTheLastRankHasSentIt) {
  EXPECT_THAT(Submit(1, GatherCommand(1, kA, 0)), IsOkAndHolds(false));
  EXPECT_THAT(sequence_->RunnableGathers(), IsEmpty());
  EXPECT_EQ(sequence_->BeginGather(1, now_), nullptr);
  EXPECT_THAT(Submit(0, GatherCommand(1, kA, 0)), IsOkAndHolds(true));
  EXPECT_THAT(sequence_->RunnableGathers(), ElementsAre(0, 1));
}

TEST_F(SequenceTest, OneRankMayBeFarAhead) {
  for (int n = 1; n <= 100; ++n) ASSERT_THAT(Submit(0, GatherCommand(n, kA, n % 2)), IsOkAndHolds(false));
  EXPECT_EQ(sequence_->last_command(0), 100);
  EXPECT_EQ(sequence_->last_command(1), 0);
  EXPECT_THAT(Submit(1, GatherCommand(1, kA, 1)), IsOkAndHolds(true));
  EXPECT_EQ(RunGather(0), 1);
  EXPECT_EQ(RunGather(0), 0);
}

TEST_F(SequenceTest, AGapOrARepeatedNumberIsRefused) {
  for (int64_t number : {0, 2, -1}) ExpectInvalid(GatherCommand(number, kA, 0), "number 1 expected");
  SubmitAll(GatherCommand(1, kA, 0));
  ExpectInvalid(GatherCommand(1, kA, 0), "command of rank 4: number 2 expected, got 1");
}

TEST_F(SequenceTest, ADifferentUnitNamesBothRanksAndCommands) {
  EXPECT_OK(Submit(0, GatherCommand(1, kA, 0)));
  EXPECT_THAT(Submit(1, GatherCommand(1, kB, 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("command 1"), HasSubstr("rank 4 sent gather a forward into slot 0"),
                             HasSubstr("rank 5 sent gather b forward into slot 0"))));
}

TEST_F(SequenceTest, ADifferentKindPhaseSlotOrAbsenceIsAMismatch) {
  const std::vector<std::pair<v1::Command, v1::Command>> pairs = {
      {GatherCommand(1, kA, 0), PushCommand(1, kA, 0)},
      {GatherCommand(1, kA, 0), GatherCommand(1, kA, 1)},
      {GatherCommand(1, kA, 0), GatherCommand(1, kA, 0, v1::PHASE_BACKWARD)},
      {PushCommand(1, kA, 0), PushCommand(1, kA, 0, {1})},
      {PushCommand(1, kA, 0, {0}), PushCommand(1, kA, 0, {1})},
      {PushCommand(1, kA, 0), CommitCommand(1, 1)},
  };
  for (const auto& [first, second] : pairs) {
    Restart(0);
    EXPECT_OK(Submit(1, first));
    EXPECT_THAT(Submit(0, second),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(absl::StrCat("rank 5 sent ", CommandText(spec_, first))),
                               HasSubstr(absl::StrCat("rank 4 sent ", CommandText(spec_, second))))));
  }
}

TEST_F(SequenceTest, DifferentHyperparametersAreAMismatchThatShowsThem) {
  v1::Command other = CommitCommand(1, 1);
  other.mutable_commit()->mutable_groups(0)->set_learning_rate(0.25f);
  EXPECT_OK(Submit(0, CommitCommand(1, 1)));
  EXPECT_THAT(Submit(1, other), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("learning rate 0.25")));
}

TEST_F(SequenceTest, DifferentClippingIsAMismatch) {
  v1::Command other = CommitCommand(1, 1);
  other.mutable_commit()->set_max_grad_norm(1);
  EXPECT_OK(Submit(0, CommitCommand(1, 1)));
  EXPECT_THAT(Submit(1, other), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(SequenceTest, ClientStateIsEachRanksOwn) {
  EXPECT_THAT(Submit(0, CommitCommand(1, 1, "zero")), IsOkAndHolds(false));
  EXPECT_THAT(Submit(1, CommitCommand(1, 1, "one")), IsOkAndHolds(true));
  RunSums();
  RunVote();
  EXPECT_EQ(BeginPush(0), Work::kApply);
  EXPECT_EQ(BeginPush(1), Work::kApply);
  EXPECT_FALSE(sequence_->FinishApply(1, now_).has_value());
  EXPECT_THAT(sequence_->FinishApply(0, now_), Optional(ElementsAre("zero", "one")));
}

// --- Commands that break a rule ---

TEST_F(SequenceTest, ACommandOfNoKindIsRefused) {
  v1::Command command;
  command.set_number(1);
  ExpectInvalid(command, "a gather, push or commit expected");
}

TEST_F(SequenceTest, APushOfAUnitWithoutTrainableParametersIsRefused) {
  ExpectInvalid(PushCommand(1, kFrozen, 0), "push frozen: a unit with trainable parameters expected");
  SubmitAll(GatherCommand(1, kFrozen, 0));
}

TEST_F(SequenceTest, AGatherOfNoUnitSlotOrPhaseIsRefused) {
  ExpectInvalid(GatherCommand(1, -1, 0), "gather: a unit in [0, 6) expected, got -1");
  ExpectInvalid(GatherCommand(1, 6, 0), "got 6");
  ExpectInvalid(GatherCommand(1, kA, -1), "a slot in [0, 3) expected, got -1");
  ExpectInvalid(GatherCommand(1, kA, 3), "got 3");
  ExpectInvalid(GatherCommand(1, kA, 0, v1::PHASE_UNSPECIFIED), "a phase expected, got 0");
  ExpectInvalid(GatherCommand(1, kA, 0, static_cast<v1::Phase>(4)), "a phase expected, got 4");
  ExpectInvalid(GatherCommand(1, kA, 0, static_cast<v1::Phase>(-1)), "a phase expected");
}

TEST_F(SequenceTest, AGatherThatItsSlotDoesNotHoldIsRefused) {
  ExpectInvalid(GatherCommand(1, kBig, 0), "gather big: a slot of at least");
  ExpectInvalid(GatherCommand(1, kBig, kResidentSlot), "gather big: a slot of at least");
  SubmitAll(GatherCommand(1, kBig, 1));
  SubmitAll(GatherCommand(2, kKept, kResidentSlot, v1::PHASE_BOTH));
}

TEST_F(SequenceTest, APushOfNoUnitOrSlotIsRefused) {
  ExpectInvalid(PushCommand(1, 6, 0), "push: a unit in [0, 6) expected");
  ExpectInvalid(PushCommand(1, -1, 0), "push: a unit");
  ExpectInvalid(PushCommand(1, kA, 2), "a gradient slot in [0, 2) expected, got 2");
  ExpectInvalid(PushCommand(1, kA, -1), "a gradient slot");
  ExpectInvalid(PushCommand(1, kBig, 0), "push big: a gradient slot of at least");
}

TEST_F(SequenceTest, AbsentParametersAreAscendingIndicesOfTheUnit) {
  for (const std::vector<int>& absent : {std::vector<int>{2}, {-1}, {1, 0}, {0, 0}, {0, 1, 2}, {-1, 0}}) {
    ExpectInvalid(PushCommand(1, kA, 0, absent), "push a: absent parameters ascending in [0, 2) expected");
  }
  SubmitAll(PushCommand(1, kA, 0, {0, 1}));
}

TEST_F(SequenceTest, ACommitNeedsHyperparametersOfEveryGroup) {
  ExpectInvalid(CommitCommand(1, 1, "", 0), "hyper-parameters of 1 groups expected, got 0");
  ExpectInvalid(CommitCommand(1, 1, "", 2), "got 2");
}

TEST_F(SequenceTest, HyperparametersOutOfRangeAreRefusedByName) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (float bad : {nan, inf, -inf}) {
    ExpectInvalidCommit([&](auto& commit) { commit.mutable_groups(0)->set_learning_rate(bad); }, "learning rate");
    ExpectInvalidCommit([&](auto& commit) { commit.mutable_groups(0)->set_weight_decay(bad); }, "weight decay");
  }
  for (float bad : {nan, inf, -inf, -0.1f, 1.0f, 1.5f}) {
    ExpectInvalidCommit([&](auto& commit) { commit.mutable_groups(0)->set_beta1(bad); }, "beta1");
    ExpectInvalidCommit([&](auto& commit) { commit.mutable_groups(0)->set_beta2(bad); }, "beta2");
  }
  for (float bad : {nan, inf, -1e-8f}) {
    ExpectInvalidCommit([&](auto& commit) { commit.mutable_groups(0)->set_epsilon(bad); }, "epsilon");
  }
  for (float bad : {nan, inf, 0.0f, -1.0f}) {
    ExpectInvalidCommit([&](auto& commit) { commit.set_max_grad_norm(bad); }, "maximal gradient norm");
    ExpectInvalidCommit([&](auto& commit) { commit.set_gradient_scale(bad); }, "gradient scale");
  }
}

TEST_F(SequenceTest, ZeroHyperparametersAreFine) {
  v1::Command command = CommitCommand(1, 1);
  *command.mutable_commit()->mutable_groups(0) = v1::GroupHyperparameters();
  SubmitAll(command);
}

TEST_F(SequenceTest, ClientStateHasALimit) {
  ExpectInvalid(CommitCommand(1, 1, std::string(kMaxClientStateBytes + 1, 'x')),
                "at most 65536 bytes expected, got 65537");
  SubmitAll(CommitCommand(1, 1, std::string(kMaxClientStateBytes, 'x')));
}

TEST_F(SequenceTest, ACommitNumberOutOfOrderIsRefused) {
  Restart(7);
  for (int64_t number : {-1, 0, 6, 9}) {
    EXPECT_THAT(
        Submit(0, CommitCommand(1, number)),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(absl::StrCat("number 8 expected, got ", number))));
  }
  SubmitAll(CommitCommand(1, 8));
}

TEST_F(SequenceTest, BeforeTheFirstCommitThereIsNoneToRepeat) {
  EXPECT_THAT(Submit(0, CommitCommand(1, 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("number 1 expected, got 0")));
}

// --- Gathers ---

TEST_F(SequenceTest, GathersOfARankBeginInOrder) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 1));
  EXPECT_EQ(sequence_->BeginGather(0, now_)->number(), 1);
  EXPECT_EQ(sequence_->BeginGather(0, now_)->number(), 2);
  EXPECT_EQ(sequence_->BeginGather(0, now_), nullptr);
  EXPECT_THAT(sequence_->RunnableGathers(), ElementsAre(1));
}

TEST_F(SequenceTest, ACommitWaitsForEveryGatherThatWasBegun) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 1));
  SubmitAll(CommitCommand(3, 1));
  for (int rank = 0; rank < kRanks; ++rank) {
    words_.Release(rank, 0, 1);
    words_.Release(rank, 1, 2);
    ASSERT_NE(sequence_->BeginGather(rank, now_), nullptr);
    ASSERT_NE(sequence_->BeginGather(rank, now_), nullptr);
    sequence_->FinishGather(rank, now_);
  }
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
  sequence_->Stop();
  EXPECT_FALSE(sequence_->Quiet());
  for (int rank = 0; rank < kRanks; ++rank) sequence_->FinishGather(rank, now_);
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, RanksRunTheirGathersIndependently) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 1));
  EXPECT_EQ(RunGather(0), 1);
  EXPECT_EQ(RunGather(0), 2);
  EXPECT_EQ(RunGather(1), 1);
}

TEST_F(SequenceTest, AReusedSlotWaitsForEveryRanksRelease) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 0));
  RunGathers();
  EXPECT_THAT(sequence_->RunnableGathers(), IsEmpty());
  words_.Release(0, 0, 1);
  EXPECT_THAT(sequence_->RunnableGathers(), IsEmpty());
  words_.Release(1, 0, 1);
  EXPECT_THAT(sequence_->RunnableGathers(), ElementsAre(0, 1));
}

// A trainer may release what has not arrived: the pieces on their way would land among those of the next gather.
TEST_F(SequenceTest, AReusedSlotWaitsUntilEveryRankHasFinishedTheGatherBefore) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 0));
  words_.Release(0, 0, 1);
  words_.Release(1, 0, 1);
  ASSERT_NE(sequence_->BeginGather(0, now_), nullptr);
  sequence_->FinishGather(0, now_);
  EXPECT_EQ(sequence_->BeginGather(0, now_), nullptr);
  ASSERT_NE(sequence_->BeginGather(1, now_), nullptr);
  EXPECT_EQ(sequence_->BeginGather(0, now_), nullptr);
  sequence_->FinishGather(1, now_);
  EXPECT_NE(sequence_->BeginGather(0, now_), nullptr);
}

TEST_F(SequenceTest, OtherSlotsDoNotWait) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 1));
  SubmitAll(GatherCommand(3, kKept, kResidentSlot, v1::PHASE_BOTH));
  for (int n = 1; n <= 3; ++n) RunGathers();
}

TEST_F(SequenceTest, AGatherDoesNotWaitForAPush) {
  SubmitAll(PushCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kA, 0));
  RunGathers();
}

TEST_F(SequenceTest, AGatherDoesNotOvertakeOneThatIsNotAgreed) {
  SubmitAll(GatherCommand(1, kA, 0));
  RunGathers();
  EXPECT_OK(Submit(0, GatherCommand(2, kB, 1)));
  EXPECT_THAT(sequence_->RunnableGathers(), IsEmpty());
}

// --- Pushes ---

TEST_F(SequenceTest, APushWaitsUntilEveryRankHasFilledTheSlot) {
  SubmitAll(PushCommand(1, kA, 0));
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
  words_.Fill(1, 0, 1);
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
  words_.Fill(0, 0, 1);
  EXPECT_THAT(sequence_->RunnablePushes(), ElementsAre(0, 1));
}

TEST_F(SequenceTest, AFillForAnEarlierPushDoesNotCount) {
  FillAll(0, 1);
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(PushCommand(2, kA, 0));
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
}

TEST_F(SequenceTest, PushesRunInOrderAndTheSlotIsDrainedWithTheLastRank) {
  SubmitAll(PushCommand(1, kA, 0));
  SubmitAll(PushCommand(2, kB, 1));
  FillAll(1, 2);
  EXPECT_EQ(BeginPush(0), std::nullopt);
  FillAll(0, 1);
  EXPECT_EQ(BeginPush(0), Work::kReduce);
  EXPECT_EQ(BeginPush(0), std::nullopt);
  EXPECT_FALSE(sequence_->FinishReduce(0, now_));
  EXPECT_EQ(BeginPush(0), Work::kReduce);
  EXPECT_FALSE(sequence_->FinishReduce(0, now_));
  EXPECT_EQ(BeginPush(1), Work::kReduce);
  EXPECT_TRUE(sequence_->FinishReduce(1, now_));
}

// --- Commits ---

TEST_F(SequenceTest, ACommitSumsThenVotesOnceThenApplies) {
  SubmitAll(CommitCommand(1, 1));
  EXPECT_TRUE(sequence_->CommitInFlight());
  EXPECT_EQ(BeginPush(0), Work::kSum);
  EXPECT_EQ(BeginPush(0), std::nullopt);
  sequence_->FinishSum(0);
  EXPECT_EQ(BeginPush(0), std::nullopt) << "the other rank has not summed";
  EXPECT_EQ(BeginPush(1), Work::kSum);
  sequence_->FinishSum(1);
  EXPECT_THAT(sequence_->RunnablePushes(), ElementsAre(0, 1));
  EXPECT_EQ(BeginPush(1), Work::kVote);
  EXPECT_EQ(BeginPush(0), std::nullopt) << "one vote is enough";
  sequence_->FinishVote(Verdict::kApplies);
  RunApplies();
  EXPECT_FALSE(sequence_->CommitInFlight());
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
}

TEST_F(SequenceTest, AmaxesAreSharedOnceWhenAllRanksHaveApplied) {
  SubmitAll(CommitCommand(1, 1));
  RunSums();
  RunVote(Verdict::kEncodes);
  EXPECT_EQ(BeginPush(0), Work::kApply);
  EXPECT_EQ(BeginPush(1), Work::kApply);
  EXPECT_FALSE(sequence_->FinishApply(1, now_).has_value());
  EXPECT_EQ(BeginPush(1), std::nullopt) << "rank 0 is still applying";
  EXPECT_FALSE(sequence_->FinishApply(0, now_).has_value());
  EXPECT_THAT(sequence_->RunnablePushes(), ElementsAre(0, 1));
  EXPECT_EQ(BeginPush(1), Work::kShareAmaxes);
  EXPECT_EQ(BeginPush(0), std::nullopt) << "one is enough";
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
  sequence_->FinishShareAmaxes();
  EXPECT_THAT(sequence_->RunnablePushes(), ElementsAre(0, 1));
}

TEST_F(SequenceTest, ACommitThatEncodesIsAnsweredWhenAllRanksHave) {
  RunUntilShared();
  SubmitAll(GatherCommand(2, kA, 0));
  EXPECT_EQ(BeginPush(0), Work::kShareAmaxes);
  sequence_->FinishShareAmaxes();
  EXPECT_EQ(BeginPush(0), Work::kEncode);
  EXPECT_FALSE(sequence_->FinishEncode(0, now_).has_value());
  EXPECT_EQ(BeginPush(0), std::nullopt);
  EXPECT_THAT(sequence_->RunnableGathers(), IsEmpty()) << "the planes of rank 1 are of the version before";
  EXPECT_TRUE(sequence_->CommitInFlight());
  EXPECT_EQ(BeginPush(1), Work::kEncode);
  EXPECT_TRUE(sequence_->FinishEncode(1, now_).has_value());
  EXPECT_FALSE(sequence_->CommitInFlight());
  EXPECT_THAT(sequence_->RunnableGathers(), ElementsAre(0, 1));
}

TEST_F(SequenceTest, TheCommitAfterOneThatEncodesBeginsAnew) {
  RunUntilShared();
  SubmitAll(CommitCommand(2, 2));
  EXPECT_EQ(BeginPush(0), Work::kShareAmaxes);
  sequence_->FinishShareAmaxes();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(BeginPush(rank), Work::kEncode);
    EXPECT_EQ(sequence_->FinishEncode(rank, now_).has_value(), rank == kRanks - 1);
  }
  RunCommit();
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
}

TEST_F(SequenceTest, ADecidedCommitSharesAndEncodesAfterStop) {
  RunUntilShared();
  sequence_->Stop();
  EXPECT_FALSE(sequence_->Quiet());
  EXPECT_EQ(BeginPush(0), Work::kShareAmaxes);
  sequence_->FinishShareAmaxes();
  EXPECT_FALSE(sequence_->Quiet());
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(BeginPush(rank), Work::kEncode);
    EXPECT_EQ(sequence_->FinishEncode(rank, now_).has_value(), rank == kRanks - 1);
  }
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, ACommitIsInFlightWhenAllRanksHaveSentIt) {
  EXPECT_OK(Submit(0, CommitCommand(1, 1)));
  EXPECT_FALSE(sequence_->CommitInFlight());
  EXPECT_OK(Submit(1, CommitCommand(1, 1)));
  EXPECT_TRUE(sequence_->CommitInFlight());
}

TEST_F(SequenceTest, ACommitWaitsOnEachRankForItsOwnReleases) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 1));
  SubmitAll(CommitCommand(3, 1));
  RunGathers();
  RunGathers();
  ReleaseAll(0, 1);
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
  words_.Release(1, 1, 2);
  EXPECT_THAT(sequence_->RunnablePushes(), ElementsAre(1));
}

TEST_F(SequenceTest, ACommitWaitsForEarlierGathersOfItsRank) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(CommitCommand(2, 1));
  // A trainer that says so although nothing has arrived.
  ReleaseAll(0, 1);
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
  sequence_->BeginGather(0, now_);
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
  sequence_->FinishGather(0, now_);
  EXPECT_THAT(sequence_->RunnablePushes(), ElementsAre(0));
}

TEST_F(SequenceTest, ACommitWaitsForEarlierPushes) {
  SubmitAll(PushCommand(1, kA, 0));
  SubmitAll(CommitCommand(2, 1));
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
  FillAll(0, 1);
  RunReduces();
  RunCommit();
}

TEST_F(SequenceTest, LaterCommandsWaitForTheCommit) {
  SubmitAll(CommitCommand(1, 1));
  SubmitAll(GatherCommand(2, kA, 0));
  SubmitAll(PushCommand(3, kA, 0));
  FillAll(0, 3);
  EXPECT_THAT(sequence_->RunnableGathers(), IsEmpty());
  RunSums();
  RunVote();
  EXPECT_EQ(BeginPush(0), Work::kApply);
  EXPECT_FALSE(sequence_->FinishApply(0, now_).has_value());
  EXPECT_THAT(sequence_->RunnableGathers(), IsEmpty()) << "rank 1 still applies";
  EXPECT_THAT(sequence_->RunnablePushes(), ElementsAre(1));
  EXPECT_EQ(BeginPush(1), Work::kApply);
  EXPECT_TRUE(sequence_->FinishApply(1, now_).has_value());
  EXPECT_THAT(sequence_->RunnableGathers(), ElementsAre(0, 1));
  RunReduces();
}

// Whoever is ahead has sent a commit: what follows it waits, also on ranks that have not heard of it.
TEST_F(SequenceTest, CommandsWaitForACommitThatIsNotAgreedYet) {
  SubmitAll(GatherCommand(1, kA, 0));
  EXPECT_OK(Submit(0, CommitCommand(2, 1)));
  EXPECT_OK(Submit(0, GatherCommand(3, kB, 1)));
  EXPECT_THAT(sequence_->RunnableGathers(), ElementsAre(0, 1));
  RunGathers();
  EXPECT_THAT(sequence_->RunnableGathers(), IsEmpty());
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
}

TEST_F(SequenceTest, CommitsMayQueue) {
  SubmitAll(CommitCommand(1, 1, "first"));
  SubmitAll(CommitCommand(2, 2, "second"));
  RunCommit();
  RunCommit();
  EXPECT_FALSE(sequence_->CommitInFlight());
}

// The protocol's bound: what a commit brings, its client state above all, is held until it is answered.
TEST_F(SequenceTest, AFourthUnansweredCommitIsRefused) {
  for (int64_t n = 1; n <= Sequence::kMostCommits; ++n)
    ASSERT_THAT(Submit(0, CommitCommand(n, n)), IsOkAndHolds(false));
  EXPECT_THAT(Submit(0, CommitCommand(4, 4)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("commit 4 of rank 4"), HasSubstr("at most 3 unanswered commits"))));
}

TEST_F(SequenceTest, AnUnansweredCommitThatIsRepeatedIsNoOtherOne) {
  for (int64_t n = 1; n <= Sequence::kMostCommits; ++n) SubmitAll(CommitCommand(n, n));
  SubmitAll(CommitCommand(4, 3));
}

TEST_F(SequenceTest, AnAnswerMakesRoomForACommit) {
  for (int64_t n = 1; n <= Sequence::kMostCommits; ++n) SubmitAll(CommitCommand(n, n));
  RunCommit();
  SubmitAll(CommitCommand(4, 4));
  EXPECT_THAT(Submit(1, CommitCommand(5, 5)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 5")));
}

TEST_F(SequenceTest, ARankThatIsFarAheadHasNoRoomUntilOthersFollow) {
  EXPECT_EQ(sequence_->Room(0), Sequence::kMostCommands);
  for (int n = 1; n <= Sequence::kMostCommands; ++n) {
    ASSERT_THAT(Submit(0, GatherCommand(n, kA, n % 2)), IsOkAndHolds(false));
  }
  EXPECT_EQ(sequence_->Room(0), 0);
  EXPECT_EQ(sequence_->Room(1), Sequence::kMostCommands) << "what is held already";
  EXPECT_THAT(Submit(1, GatherCommand(1, kA, 1)), IsOkAndHolds(true));
  RunGathers();
  EXPECT_EQ(sequence_->Room(0), 1);
}

TEST_F(SequenceTest, LargeCommandsTakeMoreRoom) {
  int n = 0;
  while (sequence_->Room(0) > 0) {
    v1::Command command = GatherCommand(++n, kA, 0);
    // A field that nobody knows.
    command.GetReflection()->MutableUnknownFields(&command)->AddLengthDelimited(99)->assign(160'000, 'x');
    ASSERT_OK(Submit(0, std::move(command)));
  }
  EXPECT_LT(n, 30);
  EXPECT_EQ(sequence_->Room(1), n);
}

TEST_F(SequenceTest, ARepeatedCommitNumberHasNothingToDo) {
  Restart(3);
  SubmitAll(CommitCommand(1, 3));
  EXPECT_FALSE(sequence_->CommitInFlight());
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
  SubmitAll(CommitCommand(2, 4));
  SubmitAll(CommitCommand(3, 4));
  SubmitAll(GatherCommand(4, kA, 0));
  RunCommit();
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
  RunGathers();
}

TEST_F(SequenceTest, ARepeatedCommitOfOneRankOnlyIsAMismatch) {
  Restart(3);
  EXPECT_OK(Submit(0, CommitCommand(1, 3)));
  EXPECT_THAT(Submit(1, CommitCommand(1, 4)),
              StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("commit 3"), HasSubstr("commit 4"))));
}

TEST_F(SequenceTest, NumbersGoOnPastTheSizeOfAWord) {
  // The words hold the low 32 bits; half of their range is never in flight.
  SubmitAll(GatherCommand(1, kA, 0));
  RunGathers();
  ReleaseAll(0, 0x80000000u + 1);
  SubmitAll(GatherCommand(2, kA, 0));
  EXPECT_THAT(sequence_->RunnableGathers(), IsEmpty()) << "a release from the past, as the comparison says";
}

// --- Stop ---

TEST_F(SequenceTest, AfterStopNothingBegins) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(PushCommand(2, kA, 0));
  FillAll(0, 2);
  EXPECT_FALSE(sequence_->Quiet());
  sequence_->Stop();
  EXPECT_THAT(sequence_->RunnableGathers(), IsEmpty());
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
  EXPECT_EQ(sequence_->BeginGather(0, now_), nullptr);
  EXPECT_EQ(BeginPush(0), std::nullopt);
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, WhatHasBegunIsFinishedBeforeItIsQuiet) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(PushCommand(2, kA, 0));
  FillAll(0, 2);
  sequence_->BeginGather(0, now_);
  EXPECT_EQ(BeginPush(1), Work::kReduce);
  sequence_->Stop();
  EXPECT_FALSE(sequence_->Quiet());
  sequence_->FinishGather(0, now_);
  EXPECT_FALSE(sequence_->Quiet());
  sequence_->FinishReduce(1, now_);
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, ACommitThatIsNotDecidedIsDroppedByStop) {
  SubmitAll(CommitCommand(1, 1));
  RunSums();
  sequence_->Stop();
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, ACommitThatIsDecidedIsAppliedByAllDespiteStop) {
  SubmitAll(CommitCommand(1, 1));
  RunSums();
  RunVote();
  sequence_->Stop();
  EXPECT_FALSE(sequence_->Quiet());
  RunApplies();
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, AVoteUnderWayAtStopDecides) {
  SubmitAll(CommitCommand(1, 1));
  RunSums();
  EXPECT_EQ(BeginPush(0), Work::kVote);
  sequence_->Stop();
  EXPECT_FALSE(sequence_->Quiet());
  sequence_->FinishVote(Verdict::kApplies);
  EXPECT_FALSE(sequence_->Quiet());
  RunApplies();
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, ACommitThatWasGivenUpIsAppliedNowhere) {
  SubmitAll(CommitCommand(1, 1));
  RunSums();
  RunVote(Verdict::kGivenUp);
  EXPECT_THAT(sequence_->RunnablePushes(), IsEmpty());
  sequence_->Stop();
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, StopEndsAllWaiting) {
  EXPECT_OK(Submit(0, GatherCommand(1, kA, 0)));
  now_ += 2 * kTimeout;
  sequence_->Stop();
  EXPECT_OK(sequence_->Overdue(now_));
  EXPECT_EQ(sequence_->NextDeadline(), kNever);
}

// --- Deadlines ---

TEST_F(SequenceTest, WhereNobodyWaitsThereIsNoDeadline) {
  EXPECT_EQ(sequence_->NextDeadline(), kNever);
  SubmitAll(GatherCommand(1, kA, 0));
  RunGathers();
  EXPECT_EQ(sequence_->NextDeadline(), kNever);
  EXPECT_OK(sequence_->Overdue(kNever));
  EXPECT_EQ(sequence_->WaitsFor(0), "");
}

TEST_F(SequenceTest, ACommandThatDoesNotComeIsOverdue) {
  EXPECT_OK(Submit(0, GatherCommand(1, kA, 0)));
  EXPECT_EQ(sequence_->NextDeadline(), now_ + kTimeout);
  EXPECT_OK(sequence_->Overdue(now_ + kTimeout - std::chrono::nanoseconds(1)));
  EXPECT_THAT(sequence_->Overdue(now_ + kTimeout),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 5"), HasSubstr("gather a"), HasSubstr("command 1"), HasSubstr("1m"))));
  EXPECT_THAT(sequence_->WaitsFor(0), AllOf(HasSubstr("rank 5"), HasSubstr("gather a")));
}

TEST_F(SequenceTest, AReleaseThatDoesNotComeIsOverdue) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 0));
  now_ += std::chrono::seconds(10);
  RunGathers();
  ReleaseAll(0, 1);
  words_.Release(1, 0, 0);
  EXPECT_EQ(sequence_->NextDeadline(), now_ + kTimeout) << "it waits since the slot's gather has ended";
  EXPECT_THAT(sequence_->Overdue(now_ + kTimeout),
              StatusIs(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr("rank 5"), HasSubstr("release of slot 0"),
                                                                  HasSubstr("gather b"), HasSubstr("command 2"))));
  EXPECT_THAT(sequence_->WaitsFor(0), AllOf(HasSubstr("rank 5"), HasSubstr("release of slot 0")));
  words_.Release(1, 0, 1);
  EXPECT_OK(sequence_->Overdue(now_ + kTimeout));
}

TEST_F(SequenceTest, GradientsThatDoNotComeAreOverdue) {
  SubmitAll(PushCommand(1, kB, 0));
  words_.Fill(1, 0, 1);
  EXPECT_THAT(sequence_->Overdue(now_ + kTimeout),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 4"), HasSubstr("gradients for push b"), HasSubstr("command 1"))));
  EXPECT_THAT(sequence_->WaitsFor(1), AllOf(HasSubstr("rank 4"), HasSubstr("gradients")));
}

TEST_F(SequenceTest, AHeldUnitMakesACommitOverdue) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(CommitCommand(2, 1));
  RunGathers();
  words_.Release(0, 0, 1);
  EXPECT_THAT(sequence_->Overdue(now_ + kTimeout),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 5"), HasSubstr("release of slot 0"), HasSubstr("commit 1"))));
}

// Rank 0 cannot release what has not been gathered because rank 1 holds the slot.
TEST_F(SequenceTest, ARankThatIsHeldUpIsNotBlamed) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 0));
  SubmitAll(CommitCommand(3, 1));
  now_ += std::chrono::seconds(10);
  RunGathers();
  words_.Release(0, 0, 1);
  EXPECT_EQ(sequence_->NextDeadline(), now_ + kTimeout);
  EXPECT_OK(sequence_->Overdue(now_ + kTimeout - std::chrono::seconds(1)));
  EXPECT_THAT(sequence_->Overdue(now_ + kTimeout), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 5")));
}

// Its ring is not read while an engine moves its bytes.
TEST_F(SequenceTest, ARankWhoseGatherRunsIsNotBlamedForItsNextCommand) {
  SubmitAll(GatherCommand(1, kA, 0));
  ASSERT_OK(Submit(0, GatherCommand(2, kB, 1)));
  now_ += kTimeout - std::chrono::seconds(1);
  ASSERT_NE(sequence_->BeginGather(1, now_), nullptr);
  now_ += std::chrono::seconds(1);
  EXPECT_OK(sequence_->Overdue(now_));
  EXPECT_THAT(sequence_->Overdue(now_ + kTimeout),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("command 2")));
}

// What has not arrived cannot be released.
TEST_F(SequenceTest, NobodyIsBlamedForASlotThatPiecesStillArriveIn) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 0));
  ASSERT_NE(sequence_->BeginGather(0, now_), nullptr);
  EXPECT_EQ(sequence_->NextDeadline(), kNever);
  EXPECT_EQ(sequence_->WaitsFor(0), "");
}

// Its commands wait for the daemon: no trainer is at fault.
TEST_F(SequenceTest, TheDaemonsOwnWorkIsNoWait) {
  SubmitAll(CommitCommand(1, 1));
  SubmitAll(PushCommand(2, kA, 0));
  RunSums();
  EXPECT_EQ(BeginPush(0), Work::kVote);
  EXPECT_EQ(sequence_->NextDeadline(), kNever);
}

TEST_F(SequenceTest, TheWaitForAPushBeginsWhenItIsNext) {
  SubmitAll(CommitCommand(1, 1));
  SubmitAll(PushCommand(2, kA, 0));
  now_ += 10 * kTimeout;
  RunCommit();
  EXPECT_OK(sequence_->Overdue(now_));
  EXPECT_EQ(sequence_->NextDeadline(), now_ + kTimeout);
}

}  // namespace
}  // namespace paramshard::server
