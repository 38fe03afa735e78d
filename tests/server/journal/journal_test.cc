// Tests that written content is read, and that invalid content is rejected.
#include "server/journal/journal.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/memory.h"
#include "server/journal/journal_codec.h"
#include "server/journal/recovery.h"
#include "tests/server/journal/training.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

RecoveryPlan PlanOf(JournalBuffer& buffer) {
  absl::StatusOr<RecoveryPlan> plan = PlanRecovery(buffer.bytes());
  EXPECT_OK(plan);
  return plan.ok() ? *std::move(plan) : RecoveryPlan();
}

// A model that is usable, in its first epoch.
class JournalTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(journal_, Journal::Create(buffer_.bytes(), training_.identity()));
    ASSERT_OK(journal_->SetUsable(training_.epoch(), training_.numbers()));
    training_.BeginEpoch(1);
    ASSERT_OK(journal_->BeginEpoch(1, training_.epoch().history));
  }
  void Commit() {
    const int64_t number = training_.numbers().commit_number + 1;
    ASSERT_OK(journal_->Prepare(training_.Prepared(number)));
    ASSERT_OK(journal_->Decide(training_.Decided(number)));
    training_.Answer();
    ASSERT_OK(journal_->Answer(training_.Answered()));
  }

  Training training_{SmallIdentity()};
  JournalBuffer buffer_{SmallIdentity()};
  std::unique_ptr<Journal> journal_;
};

TEST(JournalCodecTest, RecordsThatAreAsLargeAsTheyGetFillTheirSlots) {
  const JournalIdentity identity = SmallIdentity();
  const JournalShape shape = ShapeOf(identity, 0);
  const auto size = [](const auto& record) {
    JournalBytes bytes;
    Encode(record, bytes);
    return static_cast<int64_t>(bytes.bytes().size());
  };
  NumbersRecord numbers;
  numbers.positions.resize(shape.ranks);
  numbers.steps.resize(shape.parameters);
  numbers.scalings.resize(shape.scalings);
  EXPECT_EQ(size(numbers), RecordCapacity(JournalRecord::kNumbers, shape));
  PreparedRecord prepared{.key = {.history = {}, .epoch = 1, .commit_number = 1}, .commit = {}, .client_states = {}};
  prepared.commit.groups.resize(shape.groups);
  prepared.commit.has_gradient.resize(shape.parameters);
  EXPECT_EQ(size(prepared), RecordCapacity(JournalRecord::kPrepared, shape));
  EXPECT_EQ(size(DecidedRecord()), RecordCapacity(JournalRecord::kDecided, shape));
  EXPECT_EQ(size(JournalEpoch()), RecordCapacity(JournalRecord::kEpoch, shape));
  // A lifecycle that names records has no source yet, but there is room for both.
  const LifecycleRecord lifecycle{.lifecycle = JournalLifecycle::kChanged,
                                  .source = {.text = std::string(kMostSourceBytes, 'x')}};
  EXPECT_EQ(size(lifecycle), RecordCapacity(JournalRecord::kLifecycle, shape));
  const std::vector<std::string> states(shape.ranks, std::string(shape.client_state_bytes, 'x'));
  JournalBytes bytes;
  EncodeClientStates(states, std::string(kMaxReaderDataBytes, 'x'), bytes);
  EXPECT_EQ(static_cast<int64_t>(bytes.bytes().size()), ClientStatesCapacity(shape));
}

TEST(JournalCodecTest, PartsOfAnIdentityTakeTheBytesThatAreCountedForThem) {
  const auto size = [](const JournalIdentity& identity) {
    JournalBytes bytes;
    Encode(identity, bytes);
    return static_cast<int64_t>(bytes.bytes().size());
  };
  const auto growth_by = [&](auto&& more) {
    JournalIdentity identity = SmallIdentity();
    const int64_t before = size(identity);
    more(identity);
    return size(identity) - before;
  };
  EXPECT_EQ(growth_by([](JournalIdentity& identity) { identity.ranks.emplace_back(); }), kRankBytes);
  EXPECT_EQ(growth_by([](JournalIdentity& identity) { identity.book.emplace_back(); }), kBookParameterBytes);
  EXPECT_EQ(growth_by([](JournalIdentity& identity) { identity.ranks[0].pieces.emplace_back(); }), kPieceBytes);
  EXPECT_EQ(growth_by([](JournalIdentity& identity) { identity.ranks[0].extents.emplace_back(); }), kExtentBytes);
  EXPECT_EQ(growth_by([](JournalIdentity& identity) { identity.ranks[0].bands.emplace_back(); }), kBandBytes);
}

// A change of any offset needs another format version: servers of two versions meet in one keeper.
TEST(JournalLayoutTest, WhereEverythingLiesIsThatOfVersion6) {
  ASSERT_EQ(kJournalVersion, 6u);
  const JournalShape shape{.ranks = 3,
                           .parameters = 40,
                           .groups = 2,
                           .scalings = 30,
                           .ring_values = 100,
                           .client_state_bytes = 1000,
                           .identity_bytes = 500};
  ASSERT_OK_AND_ASSIGN(const JournalLayout layout, JournalLayout::Of(shape));
  std::vector<int64_t> places = {layout.identity, layout.states[0], layout.states[1],
                                 layout.marks,    layout.rings,     layout.size_bytes};
  for (const JournalLayout::Record& record : layout.records) {
    places.insert(places.end(), {record.word, record.slots[0], record.slots[1]});
  }
  EXPECT_THAT(places, testing::ElementsAre(128, 13056, 20224, 27392, 27584, 28032,  // and of each record:
                                           704, 768, 4928,                          //
                                           9088, 9152, 9344,                        //
                                           9536, 9600, 10944,                       //
                                           12288, 12352, 12544,                     //
                                           12736, 12800, 12928));
}

TEST_F(JournalTest, AWholeTrainingIsReadAsItIsWritten) {
  JournalBuffer buffer(SmallIdentity());
  std::unique_ptr<Journal> journal;
  for (const TrainingStep& step : WholeTraining(SmallIdentity(), 16)) {
    ASSERT_OK(step.call(journal, buffer.bytes(), nullptr)) << step.name;
    const RecoveryPlan plan = PlanOf(buffer);
    EXPECT_TRUE(SamePlan(plan, step.after)) << step.name << ": " << RecoveryActionName(plan.action) << plan.loss;
  }
}

TEST_F(JournalTest, ItMayLieInMemoryThatAKeeperHolds) {
  ASSERT_OK_AND_ASSIGN(const int64_t size_bytes, Journal::SizeOf(training_.identity()));
  ASSERT_OK_AND_ASSIGN(const Memory memory, Memory::Allocate("journal-test", size_bytes, Sharing::kKept));
  const absl::Span<uint8_t> bytes(memory.data(), memory.size_bytes());
  ASSERT_OK_AND_ASSIGN(const auto journal, Journal::Create(bytes, training_.identity()));
  ASSERT_OK(journal->SetUsable(training_.epoch(), training_.numbers()));
  ASSERT_OK_AND_ASSIGN(const RecoveryPlan plan, PlanRecovery(bytes));
  EXPECT_EQ(plan.numbers, training_.numbers());
}

TEST_F(JournalTest, AnAdoptedJournalGoesOnWhereTheOtherEnded) {
  for (int i = 0; i < 6; ++i) Commit();
  for (int i = 0; i < 6; ++i) {
    ASSERT_OK_AND_ASSIGN(journal_, Journal::Adopt(buffer_.bytes()));
    Commit();
    const RecoveryPlan plan = PlanOf(buffer_);
    EXPECT_EQ(plan.action, RecoveryAction::kServe);
    EXPECT_EQ(plan.numbers, training_.numbers());
  }
}

TEST_F(JournalTest, ACommitMayBeAnsweredByTheNextServer) {
  ASSERT_OK(journal_->Prepare(training_.Prepared(1)));
  ASSERT_OK(journal_->Decide(training_.Decided(1)));
  journal_->MarkBegun(0, 0, 1);
  journal_->MarkDone(0, 0, 1);
  ASSERT_OK_AND_ASSIGN(journal_, Journal::Adopt(buffer_.bytes()));
  journal_->MarkBegun(0, 1, 1);
  journal_->MarkDone(0, 1, 1);
  EXPECT_EQ(PlanOf(buffer_).redo.at(0).next, 2);
  training_.Answer();
  ASSERT_OK(journal_->Answer(training_.Answered()));
  EXPECT_EQ(PlanOf(buffer_).numbers, training_.numbers());
}

TEST_F(JournalTest, HistoriesLongerThanTheirRingsAreKeptNewestFirst) {
  for (int i = 0; i < 40; ++i) {
    Commit();
    EXPECT_EQ(PlanOf(buffer_).numbers, training_.numbers()) << training_.numbers().commit_number;
  }
}

TEST_F(JournalTest, CallsOutOfTurnAreRefusedAndWriteNothing) {
  const auto not_next = StatusIs(absl::StatusCode::kFailedPrecondition);
  const RecoveryPlan before = PlanOf(buffer_);
  EXPECT_THAT(journal_->SetUsable(training_.epoch(), training_.numbers()), not_next);
  EXPECT_THAT(journal_->Withdraw(), not_next);
  EXPECT_THAT(journal_->Decide(training_.Decided(1)), not_next);
  EXPECT_THAT(journal_->Prepare(training_.Prepared(2)), not_next);
  EXPECT_THAT(journal_->Prepare(training_.Prepared(0)), not_next);
  EXPECT_EQ(PlanOf(buffer_), before);

  ASSERT_OK(journal_->Prepare(training_.Prepared(1)));
  const RecoveryPlan prepared = PlanOf(buffer_);
  EXPECT_THAT(journal_->Prepare(training_.Prepared(1)), not_next);
  EXPECT_THAT(journal_->BeginEpoch(2, training_.epoch().history), not_next);
  training_.Settle(0.5f);
  EXPECT_THAT(journal_->Settle(training_.settled()), not_next);
  EXPECT_THAT(journal_->Decide(training_.Decided(2)), not_next);
  Training next = training_;
  next.Answer();
  EXPECT_THAT(journal_->Answer(next.Answered()), not_next);
  EXPECT_EQ(PlanOf(buffer_), prepared);

  ASSERT_OK(journal_->Decide(training_.Decided(1)));
  const RecoveryPlan decided = PlanOf(buffer_);
  EXPECT_THAT(journal_->Decide(training_.Decided(1)), not_next);
  EXPECT_THAT(journal_->Withdraw(), not_next);
  EXPECT_EQ(PlanOf(buffer_), decided);
}

TEST_F(JournalTest, AnEpochsNumberIsNotUsedTwice) {
  for (const int64_t epoch : {0, 1, -3}) {
    EXPECT_THAT(journal_->BeginEpoch(epoch, training_.epoch().history),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("above 1")));
  }
}

TEST_F(JournalTest, AnEpochTakesOverTheHistorysId) {
  const HistoryId id{absl::MakeUint128(77, 78)};
  ASSERT_OK(journal_->BeginEpoch(2, id));
  EXPECT_EQ(PlanOf(buffer_).epoch->history, id);
  ASSERT_OK(journal_->Prepare(training_.Prepared(1)));
  EXPECT_TRUE(PlanOf(buffer_).prepared.has_value());
}

TEST_F(JournalTest, WhatDoesNotFitIsRefused) {
  const auto invalid = StatusIs(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(journal_->Settle({}), invalid);
  PreparedCommit commit = training_.Prepared(1);
  commit.client_states[1] = std::string(25, 'x');
  EXPECT_THAT(journal_->Prepare(commit), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 24 bytes")));
  commit = training_.Prepared(1);
  commit.client_states.pop_back();
  EXPECT_THAT(journal_->Prepare(commit), invalid);
  commit = training_.Prepared(1);
  commit.reader_data.assign(kMaxReaderDataBytes + 1, 'x');
  EXPECT_THAT(journal_->Prepare(commit), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 4097")));
  commit = training_.Prepared(1);
  commit.groups.resize(3);
  EXPECT_THAT(journal_->Prepare(commit), invalid);
  commit = training_.Prepared(1);
  commit.has_gradient.push_back(true);
  EXPECT_THAT(journal_->Prepare(commit), invalid);
  EXPECT_THAT(journal_->BeginChange({.text = std::string(kMostSourceBytes + 1, 'x')}), invalid);
  EXPECT_OK(journal_->Prepare(training_.Prepared(1)));
  ASSERT_OK(journal_->Decide(training_.Decided(1)));
  training_.Answer();
  AnsweredCommit answered = training_.Answered();
  std::vector<ScalingChange> scalings(answered.scalings.begin(), answered.scalings.end());
  scalings[1].history = ScalingChange::History::kBegun;  // it has none
  answered.scalings = scalings;
  EXPECT_THAT(journal_->Answer(answered), invalid);
  scalings[1].history = ScalingChange::History::kSame;
  scalings[0].history = ScalingChange::History::kAppended;  // before it began
  EXPECT_THAT(journal_->Answer(answered), invalid);
  answered = training_.Answered();
  answered.steps = answered.steps.subspan(1);
  EXPECT_THAT(journal_->Answer(answered), invalid);
  EXPECT_OK(journal_->Answer(training_.Answered()));
}

TEST(JournalIdentityTest, WhatNoModelHasIsRefused) {
  using Change = void (*)(JournalIdentity&);
  const std::vector<Change> changes = {
      [](JournalIdentity& identity) { identity.ranks.clear(); },
      [](JournalIdentity& identity) { identity.node = 2; },
      [](JournalIdentity& identity) { identity.node = -1; },
      [](JournalIdentity& identity) { identity.device_counts[1] = 0; },
      [](JournalIdentity& identity) { identity.ranks[0].rank = 1; },
      [](JournalIdentity& identity) { identity.shard_size = 0; },
      [](JournalIdentity& identity) { identity.parameters = -1; },
      [](JournalIdentity& identity) { identity.client_state_bytes = -1; },
      [](JournalIdentity& identity) { identity.book[0].history_length = (1 << 16) + 1; },
      [](JournalIdentity& identity) { identity.ranks[0].trainable_count = 4; },
      [](JournalIdentity& identity) { identity.ranks[0].distance = 0; },
      [](JournalIdentity& identity) { identity.ranks[2].distance = 512; },
      [](JournalIdentity& identity) { identity.ranks[0].bands[1].row = 0; },
      [](JournalIdentity& identity) { identity.ranks[0].bands[1].row = 640; },
      [](JournalIdentity& identity) { identity.ranks[0].bands[1].parameter = 1; },  // frozen
      [](JournalIdentity& identity) { identity.ranks[0].extents[0].end_row = 0; },
      [](JournalIdentity& identity) { identity.ranks[0].extents[1].offsets[5] = -1; },
      [](JournalIdentity& identity) { identity.ranks[0].pieces[0].name = ""; },
      [](JournalIdentity& identity) { identity.ranks[0].pieces[0].size_bytes = -1; },
  };
  EXPECT_OK(Journal::SizeOf(SmallIdentity()));
  for (size_t i = 0; i < changes.size(); ++i) {
    JournalIdentity identity = SmallIdentity();
    changes[i](identity);
    EXPECT_THAT(Journal::SizeOf(identity), StatusIs(absl::StatusCode::kInvalidArgument)) << "change " << i;
  }
}

TEST(JournalIdentityTest, MemoryOfAnotherSizeIsRefused) {
  JournalBuffer buffer(*Journal::SizeOf(SmallIdentity()) + 64);
  EXPECT_THAT(Journal::Create(buffer.bytes(), SmallIdentity()), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace paramshard::server
