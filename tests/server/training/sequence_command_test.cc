// Commands that break a rule.

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/training/sequence_fixture.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

TEST_F(SequenceTest, ACommandOfNoKindIsRefused) {
  v1::Command command;
  command.set_number(1);
  ExpectInvalid(command, "want a gather, push, commit or discard");
}

TEST_F(SequenceTest, APushOfAUnitWithoutTrainableParametersIsRefused) {
  ExpectInvalid(PushCommand(1, kFrozen, 0), "push frozen: want a unit with trainable parameters");
  SubmitAll(GatherCommand(1, kFrozen, 0));
}

TEST_F(SequenceTest, AGatherOfNoUnitSlotOrPhaseIsRefused) {
  ExpectInvalid(GatherCommand(1, -1, 0), "gather: want a unit in [0, 6), got -1");
  ExpectInvalid(GatherCommand(1, 6, 0), "got 6");
  ExpectInvalid(GatherCommand(1, kA, -1), "want a slot in [0, 3), got -1");
  ExpectInvalid(GatherCommand(1, kA, 3), "got 3");
  ExpectInvalid(GatherCommand(1, kA, 0, v1::PHASE_UNSPECIFIED), "want a phase, got 0");
  ExpectInvalid(GatherCommand(1, kA, 0, static_cast<v1::Phase>(4)), "want a phase, got 4");
  ExpectInvalid(GatherCommand(1, kA, 0, static_cast<v1::Phase>(-1)), "want a phase");
}

TEST_F(SequenceTest, AGatherThatItsSlotDoesNotHoldIsRefused) {
  ExpectInvalid(GatherCommand(1, kBig, 0), "gather big: want a slot of at least");
  ExpectInvalid(GatherCommand(1, kBig, kResidentSlot), "gather big: want a slot of at least");
  SubmitAll(GatherCommand(1, kBig, 1));
  SubmitAll(GatherCommand(2, kKept, kResidentSlot, v1::PHASE_BOTH));
}

TEST_F(SequenceTest, APushOfNoUnitOrSlotIsRefused) {
  ExpectInvalid(PushCommand(1, 6, 0), "push: want a unit in [0, 6)");
  ExpectInvalid(PushCommand(1, -1, 0), "push: want a unit");
  ExpectInvalid(PushCommand(1, kA, 2), "want a gradient slot in [0, 2), got 2");
  ExpectInvalid(PushCommand(1, kA, -1), "a gradient slot");
  ExpectInvalid(PushCommand(1, kBig, 0), "push big: want a gradient slot of at least");
}

TEST_F(SequenceTest, AbsentParametersAreAscendingIndicesOfTheUnit) {
  for (const std::vector<int>& absent : {std::vector<int>{2}, {-1}, {1, 0}, {0, 0}, {0, 1, 2}, {-1, 0}}) {
    ExpectInvalid(PushCommand(1, kA, 0, absent), "push a: want absent parameters ascending in [0, 2)");
  }
  SubmitAll(PushCommand(1, kA, 0, {0, 1}));
}

TEST_F(SequenceTest, AStepHasNoMorePushesOfAUnitThanTheModelSays) {
  for (const bool rounds : {true, false}) {
    ModelSpec spec = spec_;
    if (rounds) spec.accumulator_type = GradientType::kBF16;
    if (!rounds) spec.pushes_per_step = 1;
    const Layout layout(spec, kRanks);
    sequence_ = std::make_unique<Sequence>(
        Sequence::Options{.spec = &spec, .layout = &layout, .ranks = kRanks, .first_rank = 4}, &words_);
    const auto is_refused = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("push a: already pushed"));
    SubmitAll(PushCommand(1, kA, 0));
    SubmitAll(PushCommand(2, kB, 1));
    EXPECT_THAT(Submit(0, PushCommand(3, kA, 0)), is_refused);
    SubmitAll(DiscardCommand(3));
    SubmitAll(PushCommand(4, kA, 0, {0}));
    EXPECT_THAT(Submit(1, PushCommand(5, kA, 0, {1})), is_refused) << "whatever is absent";
    SubmitAll(CommitCommand(5, 1));
    SubmitAll(PushCommand(6, kA, 0));
    // A commit that is answered already ends no step.
    SubmitAll(CommitCommand(7, 1));
    EXPECT_THAT(Submit(0, PushCommand(8, kA, 0)), is_refused);
    sequence_.reset();  // before its spec
  }
}

TEST_F(SequenceTest, EachUnitHasItsPushes) {
  ModelSpec spec = spec_;
  spec.pushes_per_step = 2;
  const Layout layout(spec, kRanks);
  sequence_ = std::make_unique<Sequence>(
      Sequence::Options{.spec = &spec, .layout = &layout, .ranks = kRanks, .first_rank = 4}, &words_);
  for (int64_t number = 1; number <= 4; ++number) SubmitAll(PushCommand(number, number % 2 == 0 ? kA : kB, 0));
  EXPECT_THAT(Submit(0, PushCommand(5, kA, 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("the model allows 2 pushes of a unit; raise pushes_per_step (accumulate=")));
  sequence_.reset();  // before its spec
}

TEST_F(SequenceTest, FloatAccumulatorsTakeAnyNumberOfPushes) {
  for (int64_t number = 1; number <= 3; ++number) SubmitAll(PushCommand(number, kA, 0));
}

TEST_F(SequenceTest, ACommitNeedsHyperparametersOfEveryGroup) {
  ExpectInvalid(CommitCommand(1, 1, "", 0), "want hyper-parameters of 1 groups, got 0");
  ExpectInvalid(CommitCommand(1, 1, "", 2), "got 2");
}

TEST_F(SequenceTest, HyperparametersOutOfRangeAreRefusedByName) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (float bad : {nan, inf, -inf}) {
    ExpectInvalidCommit([&](auto& commit) { commit.mutable_groups(0)->set_learning_rate(bad); }, "learning_rate");
    ExpectInvalidCommit([&](auto& commit) { commit.mutable_groups(0)->set_weight_decay(bad); }, "weight_decay");
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
  ExpectInvalid(CommitCommand(1, 1, std::string(kMaxClientStateBytes + 1, 'x')), "want at most 65536 bytes, got 65537");
  SubmitAll(CommitCommand(1, 1, std::string(kMaxClientStateBytes, 'x')));
}

TEST_F(SequenceTest, DataForReadersHasALimit) {
  v1::Command command = CommitCommand(1, 1);
  command.mutable_commit()->set_reader_data(std::string(kMaxReaderDataBytes + 1, 'x'));
  ExpectInvalid(command, "data for readers: want at most 4096 bytes, got 4097");
  command.mutable_commit()->mutable_reader_data()->pop_back();
  SubmitAll(command);
}

TEST_F(SequenceTest, ACommitNumberOutOfOrderIsRefused) {
  Restart(7);
  for (int64_t number : {-1, 0, 6, 9}) {
    EXPECT_THAT(Submit(0, CommitCommand(1, number)), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                              HasSubstr(absl::StrCat("want number 8, got ", number))));
  }
  SubmitAll(CommitCommand(1, 8));
}

TEST_F(SequenceTest, BeforeTheFirstCommitThereIsNoneToRepeat) {
  EXPECT_THAT(Submit(0, CommitCommand(1, 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("want number 1, got 0")));
}

}  // namespace
}  // namespace paramshard::server
