#include "client/internal/session.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "kernels/formats/bfloat16.h"
#include "tests/client/session/fake_epoch.h"
#include "tests/support/child_process.h"
#include "tests/support/status_matchers.h"

namespace paramshard::internal {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SessionTest : public testing::Test {
 protected:
  void Attach(const FakeEpochOptions& options = {}, const ModelSpec& spec = ThreeUnits()) {
    session_ = nullptr;
    epoch_ = std::make_unique<FakeEpoch>(spec, options);
    ASSERT_OK_AND_ASSIGN(session_, epoch_->Attach());
  }

  // The trainer's commands so far, like "1:a>0" (gather 1 of a into slot 0), "2:push c<1",
  // "3:commit 1".
  std::vector<std::string> Commands() {
    std::vector<std::string> texts;
    while (const std::optional<v1::Command> command = epoch_->NextCommand()) {
      last_ = *command;
      std::string text = absl::StrCat(command->number(), ":");
      if (command->has_gather()) {
        absl::StrAppend(&text, UnitName(command->gather().unit()), ">", command->gather().slot());
      } else if (command->has_push()) {
        absl::StrAppend(&text, "push ", UnitName(command->push().unit()), "<", command->push().slot());
      } else if (command->has_discard()) {
        absl::StrAppend(&text, "discard");
      } else {
        absl::StrAppend(&text, "commit ", command->commit().commit_number());
      }
      texts.push_back(text);
    }
    return texts;
  }

  const std::string& UnitName(int unit) const { return session_->spec().units[unit].name; }

  // Gathers and releases each unit, one letter each, then commits with an answer.
  void Step(const std::string& units) {
    for (char unit : units) {
      ASSERT_OK_AND_ASSIGN(const GatherTicket ticket,
                           session_->gathers().Gather(std::string(1, unit), Phase::kForward));
      session_->gathers().Release(ticket);
    }
    ASSERT_OK_AND_ASSIGN(const int64_t number, session_->Commit({}));
    epoch_->PublishCommitted(number, number);
    Commands();
  }

  uint32_t Released(int slot) const { return epoch_->words().released(slot).value; }

  std::unique_ptr<FakeEpoch> epoch_;
  std::shared_ptr<Session> session_;
  v1::Command last_;  // that Commands has seen
};

TEST_F(SessionTest, ADaemonWithAnotherLayoutIsRefused) {
  FakeEpoch epoch(ThreeUnits(), {.extra_fingerprint = 1});
  EXPECT_THAT(epoch.Attach(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("daemon and client library are of different")));
}

TEST_F(SessionTest, MemoryOfAnotherSizeThanTheLayoutsIsRefused) {
  FakeEpoch epoch(ThreeUnits(), {.extra_planes_bytes = 4096});
  EXPECT_THAT(epoch.Attach(),
              StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("planes"), HasSubstr("bytes by the layout"))));
}

// --- Gathers

TEST_F(SessionTest, GathersTakeTheLowestFreeSlots) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GatherTicket a, session_->gathers().Gather("a", Phase::kForward));
  ASSERT_OK(session_->gathers().Gather("b", Phase::kForward));
  session_->gathers().Release(a);
  ASSERT_OK(session_->gathers().Gather("c", Phase::kBackward));
  EXPECT_THAT(Commands(), ElementsAre("1:a>0", "2:b>1", "3:c>0"));
  EXPECT_EQ(last_.gather().phase(), v1::PHASE_BACKWARD);
  EXPECT_EQ(Released(0), a.number);
}

TEST_F(SessionTest, ExhaustedSlotsNameTheirHolders) {
  Attach();
  for (const char* unit : {"a", "b", "a"}) ASSERT_OK(session_->gathers().Gather(unit, Phase::kForward));
  EXPECT_THAT(session_->gathers().Gather("c", Phase::kForward),
              StatusIs(absl::StatusCode::kResourceExhausted, AllOf(HasSubstr("gather c"), HasSubstr("a, b, a"))));
  EXPECT_EQ(Commands().size(), 3);
}

// "big" is more than twice as large as "a", "b" and "c".
ModelSpec ABigUnitAmongThree() {
  ModelSpec spec = ThreeUnits();
  UnitSpec big = {.name = "big", .parameters = {spec.units[0].parameters[0]}};
  big.parameters[0].name = "big.w";
  big.parameters[0].shape = {256, 64};
  spec.units.push_back(big);
  return spec;
}

TEST_F(SessionTest, UnitsTellWhichSlotsTheyFit) {
  Attach({}, ABigUnitAmongThree());
  const Gathers& gathers = session_->gathers();
  EXPECT_THAT(gathers.SlotsOf("a", Phase::kForward), IsOkAndHolds(ElementsAre(0, 1, 2)));
  EXPECT_THAT(gathers.SlotsOf("big", Phase::kForward), IsOkAndHolds(ElementsAre(2)));
  EXPECT_THAT(gathers.SlotsOf("d", Phase::kForward), StatusIs(absl::StatusCode::kNotFound));
  ModelSpec spec = ABigUnitAmongThree();
  spec.large_gather_slots = 2;
  spec.units[1].reshard_after_forward = false;
  Attach({}, spec);
  EXPECT_THAT(session_->gathers().SlotsOf("big", Phase::kForward), IsOkAndHolds(ElementsAre(1, 2)));
  EXPECT_THAT(session_->gathers().SlotsOf("b", Phase::kBoth), IsOkAndHolds(ElementsAre(3)));
  EXPECT_THAT(session_->gathers().SlotsOf("b", Phase::kForward), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(SessionTest, WhetherAGatherHasASlotIsToldBefore) {
  Attach({}, ABigUnitAmongThree());
  Gathers& gathers = session_->gathers();
  EXPECT_OK(gathers.CanGather("big", Phase::kForward));
  ASSERT_OK(gathers.Gather("a", Phase::kForward));
  ASSERT_OK(gathers.Gather("b", Phase::kForward));
  ASSERT_OK_AND_ASSIGN(const GatherTicket c, gathers.Gather("c", Phase::kForward));  // in the large slot
  const auto is_refused =
      StatusIs(absl::StatusCode::kResourceExhausted,
               "gather big: no gather slot is free: the large slots that fit are held by handles of c; release one, or "
               "raise ModelSpec.large_gather_slots above 1");
  EXPECT_THAT(gathers.CanGather("big", Phase::kForward), is_refused);
  EXPECT_THAT(gathers.Gather("big", Phase::kForward), is_refused);
  EXPECT_THAT(
      gathers.CanGather("a", Phase::kForward),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("all that fit are held by handles of a, b, c"), HasSubstr("gather_slots above 3"))));
  gathers.Release(c);
  EXPECT_OK(gathers.CanGather("big", Phase::kForward));
  EXPECT_EQ(Commands().size(), 3);
}

// A unit that was gathered ahead gives way, or is the requested one.
TEST_F(SessionTest, WhatWasGatheredAheadIsInNobodysWay) {
  Attach();
  Step("abc");
  ASSERT_OK(session_->gathers().Gather("a", Phase::kForward));  // and b, c ahead
  EXPECT_OK(session_->gathers().CanGather("b", Phase::kForward));
  EXPECT_OK(session_->gathers().CanGather("c", Phase::kForward));
  EXPECT_THAT(Commands(), ElementsAre("5:a>0", "6:b>1", "7:c>2"));
}

TEST_F(SessionTest, UnknownUnitsAndPhasesAreRefused) {
  Attach();
  EXPECT_THAT(session_->gathers().Gather("d", Phase::kForward),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("unit d")));
  EXPECT_THAT(session_->gathers().Gather("a", static_cast<Phase>(9)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 9")));
  EXPECT_TRUE(Commands().empty());
}

TEST_F(SessionTest, WaitLandsOwnPiecesAndAwaitsTheOthers) {
  Attach();
  std::fill_n(epoch_->planes(), epoch_->layout().arena_bytes(0), 0x5a);
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  EXPECT_FALSE(session_->gathers().IsReady(ticket));
  Commands();
  epoch_->PublishReady(last_);
  EXPECT_TRUE(session_->gathers().IsReady(ticket));
  ASSERT_OK(session_->gathers().Await(ticket));
  // Rank 0 owns the first half of the rows of a.w; the other half is the fake's, who copied
  // nothing.
  const PlaneBytes bytes = session_->gathers().Bytes(ticket, 0, Plane::kRowWise);
  EXPECT_THAT(bytes.data.subspan(0, bytes.data.size() / 2), Each(0x5a));
  EXPECT_THAT(bytes.data.subspan(bytes.data.size() / 2), Each(0));
  ASSERT_EQ(bytes.scales.size(), 2);
  EXPECT_THAT(bytes.scales[0], Each(0x5a));
  EXPECT_THAT(bytes.scales[1], Each(0));
}

TEST_F(SessionTest, WhenTheEngineLandsEveryPieceNoneIsCopied) {
  Attach({.client_lands_own_pieces = false});
  std::fill_n(epoch_->planes(), epoch_->layout().arena_bytes(0), 0x5a);
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  Commands();
  epoch_->PublishReady(last_);
  ASSERT_OK(session_->gathers().Await(ticket));
  EXPECT_THAT(session_->gathers().Bytes(ticket, 0, Plane::kRowWise).data, Each(0));
}

TEST_F(SessionTest, AGroupOfOneReadsItsPlanesInPlace) {
  Attach({.ranks = 1});
  std::fill_n(epoch_->planes(), epoch_->layout().arena_bytes(0), 0x5a);
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  EXPECT_TRUE(session_->gathers().IsReady(ticket));
  ASSERT_OK(session_->gathers().Await(ticket));
  EXPECT_THAT(session_->gathers().Bytes(ticket, 0, Plane::kRowWise).data, Each(0x5a));
  EXPECT_THAT(Commands(), ElementsAre("1:a>0"));
}

TEST_F(SessionTest, OwnPiecesAreNotReadBeforeTheCommitThatWritesThem) {
  Attach({.ranks = 1, .prefetch = false});
  ASSERT_OK(session_->Commit({}));
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  EXPECT_FALSE(session_->gathers().IsReady(ticket));
  epoch_->PublishCommitted(1, 1);
  EXPECT_TRUE(session_->gathers().IsReady(ticket));
  EXPECT_OK(session_->gathers().Await(ticket));
}

TEST_F(SessionTest, ResidentUnitsHaveASlotOfTheirOwnAndBothPhases) {
  ModelSpec spec = ThreeUnits();
  spec.units[1].reshard_after_forward = false;
  Attach({}, spec);
  EXPECT_THAT(session_->gathers().Gather("b", Phase::kForward),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("gather b"), HasSubstr("both"))));
  ASSERT_OK(session_->gathers().Gather("b", Phase::kBoth));
  EXPECT_THAT(Commands(), ElementsAre("1:b>3"));
  EXPECT_THAT(session_->gathers().Gather("b", Phase::kBoth),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("still held")));
}

// --- Prefetch

TEST_F(SessionTest, TheSecondStepIsGatheredAhead) {
  Attach();
  Step("abcab");
  ASSERT_OK_AND_ASSIGN(const GatherTicket a, session_->gathers().Gather("a", Phase::kForward));
  EXPECT_THAT(Commands(), ElementsAre("7:a>0", "8:b>1", "9:c>2"));
  session_->gathers().Release(a);
  ASSERT_OK_AND_ASSIGN(const GatherTicket b, session_->gathers().Gather("b", Phase::kForward));
  EXPECT_EQ(b.number, 8);
  EXPECT_THAT(Commands(), ElementsAre("10:a>0"));
}

TEST_F(SessionTest, PrefetchCanBeTurnedOff) {
  Attach({.prefetch = false});
  Step("abc");
  ASSERT_OK(session_->gathers().Gather("a", Phase::kForward));
  EXPECT_EQ(Commands().size(), 1);
}

TEST_F(SessionTest, NothingIsGatheredAheadOfACommit) {
  Attach();
  Step("ab");
  ASSERT_OK_AND_ASSIGN(const GatherTicket a, session_->gathers().Gather("a", Phase::kForward));
  session_->gathers().Release(a);
  ASSERT_OK_AND_ASSIGN(const GatherTicket b, session_->gathers().Gather("b", Phase::kForward));
  session_->gathers().Release(b);
  EXPECT_THAT(Commands(), ElementsAre("4:a>0", "5:b>1"));
}

TEST_F(SessionTest, ADeviationReleasesWhatWasGatheredAhead) {
  Attach();
  Step("abc");
  ASSERT_OK(session_->gathers().Gather("a", Phase::kForward));  // and b, c ahead, as 6 and 7
  ASSERT_OK_AND_ASSIGN(const GatherTicket c, session_->gathers().Gather("c", Phase::kForward));
  EXPECT_THAT(Commands(), ElementsAre("5:a>0", "6:b>1", "7:c>2", "8:c>1"));
  EXPECT_EQ(c.slot, 1);
  EXPECT_EQ(Released(1), 6);
  EXPECT_EQ(Released(2), 7);
}

TEST_F(SessionTest, ACommitReleasesWhatWasGatheredAhead) {
  Attach();
  Step("abc");
  ASSERT_OK_AND_ASSIGN(const GatherTicket a, session_->gathers().Gather("a", Phase::kForward));
  session_->gathers().Release(a);
  ASSERT_OK(session_->Commit({}));
  EXPECT_THAT(Commands(), ElementsAre("5:a>0", "6:b>1", "7:c>2", "8:commit 2"));
  EXPECT_EQ(Released(1), 6);
  EXPECT_EQ(Released(2), 7);
}

// --- Gradients

TEST_F(SessionTest, APushFillsItsSlotBeforeTheCommand) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GradientTicket ticket, session_->gradients().Take("b"));
  const GradientView view = session_->gradients().View(ticket, 0);
  EXPECT_EQ(view.rows, 64);
  EXPECT_EQ(view.columns, 32);
  EXPECT_THAT(view.data, Each(0));
  ASSERT_OK(session_->gradients().Push(ticket, {1}));
  EXPECT_EQ(epoch_->words().filled(0).value, 1);
  EXPECT_THAT(Commands(), ElementsAre("1:push b<0"));
  EXPECT_THAT(last_.push().absent_parameters(), ElementsAre(1));
}

TEST_F(SessionTest, GradientSlotsRotateWhateverDrainsFirst) {
  Attach();
  for (const char* unit : {"c", "b"}) {
    ASSERT_OK_AND_ASSIGN(const GradientTicket ticket, session_->gradients().Take(unit));
    ASSERT_OK(session_->gradients().Push(ticket, {}));
  }
  EXPECT_THAT(Commands(), ElementsAre("1:push c<0", "2:push b<1"));
  epoch_->PublishDrained(last_);
  std::thread daemon([&] {
    EXPECT_TRUE(epoch_->AwaitTrainerAsleep());
    epoch_->words().Publish(epoch_->words().drained(0), 1);
  });
  ASSERT_OK_AND_ASSIGN(const GradientTicket third, session_->gradients().Take("a"));
  daemon.join();
  EXPECT_EQ(third.slot, 0);
}

TEST_F(SessionTest, ASlotIsZeroedWheneverItIsHandedOut) {
  Attach();
  ASSERT_OK_AND_ASSIGN(GradientTicket ticket, session_->gradients().Take("a"));
  std::fill_n(session_->gradients().View(ticket, 0).data.data(), 100, 0xff);
  session_->gradients().GiveBack(ticket);
  ASSERT_OK_AND_ASSIGN(ticket, session_->gradients().Take("a"));
  EXPECT_EQ(ticket.slot, 0);
  EXPECT_THAT(session_->gradients().View(ticket, 0).data, Each(0));
}

TEST_F(SessionTest, TheFirstPushOfAUnitLandsTheRanksOwnRows) {
  Attach({.group_rank = 1, .client_lands_own_gradients = true});
  const auto push = [&](const char* unit, uint8_t value) {
    ASSERT_OK_AND_ASSIGN(const GradientTicket ticket, session_->gradients().Take(unit));
    const absl::Span<uint8_t> data = session_->gradients().View(ticket, 0).data;
    std::fill_n(data.data(), data.size() / 2, 0xee);  // rank 0's rows
    std::fill_n(data.data() + data.size() / 2, data.size() / 2, value);
    ASSERT_OK(session_->gradients().Push(ticket, {1}));
    Commands();
    epoch_->PublishDrained(last_);
  };
  const absl::Span<const uint8_t> landed(
      epoch_->slots() + epoch_->layout().slots_bytes() + epoch_->layout().units()[0].parameters[0].landing_offset,
      32 * 32 * sizeof(float));
  push("a", 0x11);
  EXPECT_TRUE(last_.push().own_slices_landed());
  EXPECT_THAT(landed, Each(0x11));
  push("a", 0x22);
  EXPECT_FALSE(last_.push().own_slices_landed());
  EXPECT_THAT(landed, Each(0x11));
  ASSERT_OK_AND_ASSIGN(const int64_t number, session_->Commit({}));
  epoch_->PublishCommitted(number, number);
  push("a", 0x33);
  EXPECT_TRUE(last_.push().own_slices_landed());
  EXPECT_THAT(landed, Each(0x33));
  ASSERT_OK(session_->Commit({.commit_number = number}));  // again: nothing is summed
  push("a", 0x44);
  EXPECT_FALSE(last_.push().own_slices_landed());
  EXPECT_THAT(landed, Each(0x33));
}

// --- Values that are pushed by one call

// The gradients of a unit of ThreeUnits in the trainer's own memory: 64 x 32 elements of `a.w`, and 64 of `a.bias`.
struct Values {
  std::vector<float> w = std::vector<float>(64 * 32);
  std::vector<uint16_t> bias;

  std::vector<ConstGradient> Both() const { return {w.data(), {bias.data(), GradientType::kBF16}}; }
};

class PushValuesTest : public SessionTest {
 protected:
  // Element i of `w` is `first` + i; elements of the bias are `bias`, in BF16.
  Values ValuesFrom(float first, float bias) {
    Values values;
    std::iota(values.w.begin(), values.w.end(), first);
    values.bias.assign(64, EncodeBFloat16(bias));
    return values;
  }
  absl::Span<const float> InSlot(int slot, int parameter) const {
    return session_->gradients().View({.unit = 0, .slot = slot}, parameter).fp32();
  }
  absl::Span<const float> Landed(int parameter, int64_t count) const {
    const uint8_t* const area = epoch_->slots() + epoch_->layout().slots_bytes();
    return {reinterpret_cast<const float*>(area + epoch_->layout().units()[0].parameters[parameter].landing_offset),
            static_cast<size_t>(count)};
  }
};

TEST_F(PushValuesTest, TheSlotHasTheValuesInTheGradientsType) {
  Attach();
  const Values values = ValuesFrom(1, 2.5f);
  ASSERT_OK(session_->gradients().PushValues("a", values.Both()));
  EXPECT_THAT(Commands(), ElementsAre("1:push a<0"));
  EXPECT_FALSE(last_.push().own_slices_landed());
  EXPECT_THAT(last_.push().absent_parameters(), IsEmpty());
  EXPECT_EQ(epoch_->words().filled(0).value, 1);
  EXPECT_THAT(InSlot(0, 0), ElementsAreArray(values.w));
  EXPECT_THAT(InSlot(0, 1), Each(2.5f));
}

TEST_F(PushValuesTest, OwnRowsLandAndTheOthersLieInTheSlot) {
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank);
    Attach({.group_rank = rank, .client_lands_own_gradients = true});
    std::fill_n(epoch_->slots(), epoch_->layout().slots_bytes(), 0xee);
    const Values values = ValuesFrom(1, 2.5f);
    ASSERT_OK(session_->gradients().PushValues("a", values.Both()));
    Commands();
    EXPECT_TRUE(last_.push().own_slices_landed());
    const int64_t half = 32 * 32;
    const absl::Span<const float> w = values.w;
    const absl::Span<const float> slot = InSlot(0, 0);
    EXPECT_THAT(Landed(0, half), ElementsAreArray(w.subspan(rank * half, half)));
    EXPECT_THAT(slot.subspan((1 - rank) * half, half), ElementsAreArray(w.subspan((1 - rank) * half, half)));
    float untouched;
    std::memset(&untouched, 0xee, sizeof(untouched));
    EXPECT_THAT(slot.subspan(rank * half, half), Each(untouched)) << "nobody reads them";
  }
}

TEST_F(PushValuesTest, TheSecondPushOfAStepLiesInTheSlotAlone) {
  Attach({.group_rank = 1, .client_lands_own_gradients = true});
  ASSERT_OK(session_->gradients().PushValues("a", ValuesFrom(1, 1).Both()));
  const Values second = ValuesFrom(7, 7);
  ASSERT_OK(session_->gradients().PushValues("a", second.Both()));
  Commands();
  EXPECT_FALSE(last_.push().own_slices_landed());
  EXPECT_THAT(InSlot(1, 0), ElementsAreArray(second.w));
  EXPECT_EQ(Landed(0, 1)[0], 1 + 32 * 32) << "of the first";
}

TEST_F(PushValuesTest, AParameterWithoutValuesIsAbsent) {
  Attach();
  const Values values = ValuesFrom(1, 1);
  ASSERT_OK(session_->gradients().PushValues("a", {{}, values.Both()[1]}));
  Commands();
  EXPECT_THAT(last_.push().absent_parameters(), ElementsAre(0));
  EXPECT_THAT(InSlot(0, 1), Each(1));
}

TEST_F(PushValuesTest, WaitsForTheSlotToDrain) {
  Attach();
  const Values values = ValuesFrom(1, 1);
  for (int i = 0; i < 2; ++i) ASSERT_OK(session_->gradients().PushValues("a", values.Both()));
  Commands();
  const absl::Status third = [&] {
    std::thread daemon([&] {
      EXPECT_TRUE(epoch_->AwaitTrainerAsleep());
      EXPECT_EQ(InSlot(0, 0)[0], 1) << "the daemon still reads it";
      epoch_->words().Publish(epoch_->words().drained(0), 1);
    });
    const absl::Status pushed = session_->gradients().PushValues("a", ValuesFrom(5, 5).Both());
    daemon.join();
    return pushed;
  }();
  ASSERT_OK(third);
  EXPECT_EQ(InSlot(0, 0)[0], 5);
  EXPECT_THAT(Commands(), ElementsAre("3:push a<0"));
}

TEST_F(PushValuesTest, WrongNumbersAreRefusedAndSendNothing) {
  Attach();
  const Values values = ValuesFrom(1, 1);
  EXPECT_THAT(session_->gradients().PushValues("a", {values.w.data()}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want values of 2 parameters, got 1")));
  EXPECT_THAT(session_->gradients().PushValues("x", values.Both()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Commands(), IsEmpty());
  ASSERT_OK(session_->Commit({})) << "no slot is held";
}

TEST_F(SessionTest, ADiscardBeginsTheStepAnew) {
  Attach({.group_rank = 1, .client_lands_own_gradients = true});
  Step("ab");
  ASSERT_OK_AND_ASSIGN(const GatherTicket held, session_->gathers().Gather("a", Phase::kForward));
  ASSERT_OK_AND_ASSIGN(const GradientTicket pushed, session_->gradients().Take("a"));
  ASSERT_OK(session_->gradients().Push(pushed, {}));
  EXPECT_THAT(Commands(), ElementsAre("4:a>0", "5:b>1", "6:push a<0")) << "b is gathered ahead";
  epoch_->PublishDrained(last_);
  ASSERT_OK(session_->Discard());
  EXPECT_THAT(Commands(), ElementsAre("7:discard"));
  session_->gathers().Release(held);
  ASSERT_OK(session_->gathers().Gather("a", Phase::kForward));
  EXPECT_THAT(Commands(), ElementsAre("8:a>0", "9:b>1")) << "as from the beginning of a step";
  ASSERT_OK_AND_ASSIGN(const GradientTicket again, session_->gradients().Take("a"));
  ASSERT_OK(session_->gradients().Push(again, {}));
  EXPECT_THAT(Commands(), ElementsAre("10:push a<1"));
  EXPECT_TRUE(last_.push().own_slices_landed()) << "it is the first of the step";
}

// Another rank has pushed: this one's gathers are as they were.
TEST_F(SessionTest, ADiscardWithoutAPushLeavesTheStepWhereItIs) {
  Attach();
  Step("ab");
  ASSERT_OK_AND_ASSIGN(const GatherTicket first, session_->gathers().Gather("a", Phase::kForward));
  EXPECT_THAT(Commands(), ElementsAre("4:a>0", "5:b>1"));
  ASSERT_OK(session_->Discard());
  ASSERT_OK_AND_ASSIGN(const GatherTicket second, session_->gathers().Gather("b", Phase::kForward));
  EXPECT_EQ(second.number, 5) << "gathered ahead before";
  EXPECT_THAT(Commands(), ElementsAre("6:discard"));
  session_->gathers().Release(first);
  session_->gathers().Release(second);
}

TEST_F(SessionTest, HeldGradientSlotsAreNamed) {
  Attach();
  ASSERT_OK(session_->gradients().Take("a"));
  ASSERT_OK(session_->gradients().Take("b"));
  EXPECT_THAT(session_->gradients().Take("c"), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("a, b")));
  EXPECT_THAT(session_->Commit({}), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a, b")));
}

// --- Commits

TEST_F(SessionTest, ACommitWithAUnitHeldIsRefused) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("b", Phase::kForward));
  EXPECT_THAT(session_->Commit({}), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("still held: b")));
  session_->gathers().Release(ticket);
  EXPECT_THAT(session_->Commit({}), IsOkAndHolds(1));
}

TEST_F(SessionTest, CommitNumbersGoOnFromTheEpochsStart) {
  Attach({.commit_number = 41});
  EXPECT_THAT(session_->Commit({.commit_number = 44}),
              StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("42"), HasSubstr("got 44"))));
  EXPECT_THAT(session_->Commit({.commit_number = 40}), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(session_->Commit({.commit_number = 41}), IsOkAndHolds(41));
  EXPECT_THAT(session_->Commit({}), IsOkAndHolds(42));
  EXPECT_THAT(session_->Commit({.commit_number = 42}), IsOkAndHolds(42));
  EXPECT_THAT(Commands(), ElementsAre("1:commit 41", "2:commit 42", "3:commit 42"));
}

TEST_F(SessionTest, AnAnswerIsTheRecordsOfItsCommit) {
  Attach();
  ASSERT_OK(session_->Commit({}));
  EXPECT_FALSE(session_->commits().IsReady(1));
  epoch_->PublishCommitted(1, 1);
  EXPECT_TRUE(session_->commits().IsReady(1));
  ASSERT_OK_AND_ASSIGN(const StepResult result, session_->commits().Await(1));
  EXPECT_EQ(result.commit_number, 1);
  EXPECT_EQ(result.version, 1);
  EXPECT_EQ(result.gradient_norm, 0.5);
  EXPECT_FALSE(result.skipped);
}

TEST_F(SessionTest, TheFourthCommitInFlightWaitsForTheFirst) {
  Attach();
  for (int i = 0; i < 3; ++i) ASSERT_OK(session_->Commit({}));
  std::thread daemon([&] {
    EXPECT_TRUE(epoch_->AwaitTrainerAsleep());
    epoch_->PublishCommitted(1, 1);
  });
  ASSERT_OK(session_->Commit({}));
  EXPECT_EQ(epoch_->words().committed().value, 1);
  daemon.join();
}

TEST_F(SessionTest, AnswersOutliveTheirRecords) {
  Attach();
  for (int64_t number = 1; number <= 20; ++number) {
    ASSERT_OK(session_->Commit({}));
    epoch_->PublishCommitted(number, 100 + number);
  }
  for (int64_t number = 1; number <= 20; ++number) {
    ASSERT_OK_AND_ASSIGN(const StepResult result, session_->commits().Await(number));
    EXPECT_EQ(result.version, 100 + number);
  }
}

TEST_F(SessionTest, AFullRingIsWaitedFor) {
  Attach({.prefetch = false});
  for (int i = 0; i < 3; ++i) ASSERT_OK(session_->Commit({.client_state = std::string(65536, 'x')}));
  constexpr int kGathers = 10000;
  std::thread trainer([&] {
    for (int i = 0; i < kGathers; ++i) {
      const absl::StatusOr<GatherTicket> ticket = session_->gathers().Gather("a", Phase::kForward);
      ASSERT_OK(ticket);
      session_->gathers().Release(*ticket);
    }
  });
  EXPECT_TRUE(epoch_->AwaitTrainerAsleep());
  for (int64_t seen = 0; seen < 3 + kGathers;) {
    const std::optional<v1::Command> command = epoch_->NextCommand();
    if (!command.has_value()) continue;
    ASSERT_EQ(command->number(), ++seen);
  }
  trainer.join();
}

// --- The end

TEST_F(SessionTest, AfterTheEndEveryCallSaysWhy) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  epoch_->words().Finish(wire::Side::kDaemon, static_cast<uint32_t>(absl::StatusCode::kAborted), "rank 1 has left");
  const auto is_end = StatusIs(absl::StatusCode::kAborted, "rank 1 has left");
  EXPECT_THAT(session_->status(), is_end);
  EXPECT_THAT(session_->gathers().Await(ticket), is_end);
  EXPECT_TRUE(session_->gathers().IsReady(ticket));
  EXPECT_THAT(session_->gathers().Gather("b", Phase::kForward), is_end);
  EXPECT_THAT(session_->gradients().Take("b"), is_end);
  EXPECT_THAT(session_->Commit({}), is_end);
}

TEST_F(SessionTest, AnAnswerGivenBeforeTheEndIsStillTold) {
  Attach();
  for (int i = 0; i < 2; ++i) ASSERT_OK(session_->Commit({}));
  epoch_->PublishCommitted(1, 1);
  epoch_->words().Finish(wire::Side::kDaemon, static_cast<uint32_t>(absl::StatusCode::kAborted), "rank 1 has left");
  EXPECT_THAT(session_->commits().Await(1), IsOk());
  EXPECT_THAT(session_->commits().Await(2), StatusIs(absl::StatusCode::kAborted));
}

TEST_F(SessionTest, AWaiterWakesWhenTheDaemonDies) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  std::thread killer([&] {
    EXPECT_TRUE(epoch_->AwaitTrainerAsleep());
    epoch_->KillDaemon();
  });
  EXPECT_THAT(session_->gathers().Await(ticket), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has died")));
  killer.join();
  EXPECT_THAT(session_->Commit({}), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(SessionTest, AnInterruptedWaitMayBeRepeated) {
  int asked = 0;
  const absl::Status enough = absl::CancelledError("enough");
  Attach({.interruption = Interruption([&] { return ++asked == 2 ? enough : absl::OkStatus(); })});
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  EXPECT_EQ(session_->gathers().Await(ticket), enough);
  epoch_->PublishReady(*epoch_->NextCommand());
  EXPECT_OK(session_->gathers().Await(ticket));
  session_->gathers().Release(ticket);
  ASSERT_OK(session_->Commit({}));
  asked = 0;
  EXPECT_EQ(session_->commits().Await(1).status(), enough);
  epoch_->PublishCommitted(1, 1);
  EXPECT_OK(session_->commits().Await(1).status());
}

TEST_F(SessionTest, AClosedCompanionConnectionEndsTheSession) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  epoch_->CloseCompanion();
  EXPECT_THAT(session_->gathers().Await(ticket), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("companion")));
}

// --- A forked child

class ForkTest : public SessionTest, public testing::WithParamInterface<bool> {
 protected:
  // Returns true if the watch still ends the page when the daemon dies.
  bool WatchEndsThePage() {
    epoch_->KillDaemon();
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (epoch_->words().status().value.load() == 0) {
      if (absl::Now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
};

TEST_P(ForkTest, AChildCanNeitherUseNorDisturbTheSession) {
  Attach();
  ASSERT_OK(session_->Commit({}));
  epoch_->PublishCommitted(1, 1);
  ASSERT_OK(session_->commits().Await(1));
  ASSERT_OK_AND_ASSIGN(const GatherTicket gathered, session_->gathers().Gather("a", Phase::kForward));
  ASSERT_OK_AND_ASSIGN(const GradientTicket gradients, session_->gradients().Take("b"));
  const std::string page = epoch_->PageBytes();
  test::ChildProcess child = test::ChildProcess::Run([&](test::Board&) -> absl::Status {
    for (const absl::Status& answer :
         {session_->status(), session_->gathers().Gather("c", Phase::kForward).status(),
          session_->gathers().Await(gathered), session_->gradients().Take("c").status(),
          session_->gradients().Push(gradients, {}), session_->Commit({}).status(),
          session_->commits().Await(1).status(), session_->commits().Await(2).status(), session_->Detach()}) {
      const bool says_why = absl::StrContains(answer.message(), "in a forked child");
      if (answer.code() != absl::StatusCode::kFailedPrecondition || !says_why)
        return absl::UnknownError(answer.ToString());
    }
    if (!session_->gathers().IsReady(gathered) || !session_->commits().IsReady(2))
      return absl::UnknownError("a wait would not end");
    session_->gathers().Release(gathered);
    session_->gradients().GiveBack(gradients);
    session_ = nullptr;
    if (GetParam()) std::exit(0);
    return absl::OkStatus();
  });
  EXPECT_OK(child.Await());
  EXPECT_TRUE(epoch_->PageBytes() == page);
  EXPECT_OK(session_->status());
  EXPECT_TRUE(WatchEndsThePage());
}

INSTANTIATE_TEST_SUITE_P(EndsBy, ForkTest, testing::Values(false, true),
                         [](const auto& info) { return info.param ? "exit" : "_exit"; });

TEST_F(SessionTest, ADetachedSessionsMemoryStaysMapped) {
  Attach({.ranks = 1});
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  ASSERT_OK(session_->gathers().Await(ticket));
  const PlaneBytes bytes = session_->gathers().Bytes(ticket, 0, Plane::kRowWise);
  ASSERT_OK(session_->Detach());
  EXPECT_THAT(bytes.data, Each(0));
  EXPECT_OK(session_->Detach());
}

}  // namespace
}  // namespace paramshard::internal
