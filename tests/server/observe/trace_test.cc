#include "server/observe/trace.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kMost = 10'000;

// Two ranks of a world, 4 and 5.
class TraceTest : public testing::Test {
 protected:
  void Send(int rank, int64_t command, int64_t time_ns, int64_t commit_number = 0) {
    recorder_.of(rank).commands.Write({.time_ns = time_ns, .command = command, .commit_number = commit_number});
  }
  void Work(int rank, EventKind kind, EventEdge edge, int64_t command, int64_t time_ns) {
    recorder_.of(rank).pushes.Write({.kind = kind, .edge = edge, .time_ns = time_ns, .command = command});
  }
  // Both ranks take a push and a commit; rank 5 votes.
  void Step(int64_t number) {
    const int64_t first = 2 * number - 1;
    const int64_t time = 1000 * number;
    for (int rank : {0, 1}) {
      Send(rank, first, time + rank);
      Send(rank, first + 1, time + 10 + rank, number);
      Work(rank, EventKind::kPush, EventEdge::kBegin, first, time + 20);
      Work(rank, EventKind::kPush, EventEdge::kEnd, first, time + 30);
    }
    Work(1, EventKind::kVote, EventEdge::kBegin, first + 1, time + 40);
    Work(1, EventKind::kVote, EventEdge::kEnd, first + 1, time + 50);
  }
  static std::vector<Span> Of(const Trace& trace, EventKind kind, int rank) {
    std::vector<Span> spans;
    for (const Span& span : trace.spans) {
      if (span.kind == kind && span.rank == rank) spans.push_back(span);
    }
    return spans;
  }

  Recorder recorder_{7, 2, 4};
};

TEST_F(TraceTest, ACommitLastsUntilTheLastRankHasSentItWhichIsNamed) {
  Step(1);
  const Trace trace = MakeTrace(recorder_, 1, kMost);
  EXPECT_EQ(trace.epoch, 7);
  const std::vector<Span> early = Of(trace, EventKind::kCommand, 4);
  ASSERT_EQ(early.size(), 2u);
  EXPECT_EQ(early[0].begin_ns, 1000);
  EXPECT_EQ(early[0].end_ns, 1000) << "a push is its rank's own";
  EXPECT_EQ(early[0].waits_for, std::nullopt);
  EXPECT_EQ(early[1].begin_ns, 1010);
  EXPECT_EQ(early[1].end_ns, 1011);
  EXPECT_EQ(early[1].waits_for, 5);
  const std::vector<Span> late = Of(trace, EventKind::kCommand, 5);
  ASSERT_EQ(late.size(), 2u);
  EXPECT_EQ(late[1].waits_for, std::nullopt);
}

TEST_F(TraceTest, EachRankCountsItsOwnCommands) {
  Send(0, 1, 1000, 1);
  Send(1, 1, 1000);
  Send(1, 2, 1010);
  Send(1, 3, 1020, 1);
  Work(1, EventKind::kPush, EventEdge::kBegin, 2, 1030);
  Work(1, EventKind::kPush, EventEdge::kEnd, 2, 1040);
  Send(0, 2, 2000);
  const Trace trace = MakeTrace(recorder_, 2, kMost);
  EXPECT_EQ(Of(trace, EventKind::kCommand, 4)[0].end_ns, 1020);
  EXPECT_EQ(Of(trace, EventKind::kCommand, 4)[1].commit_number, 2);
  EXPECT_EQ(Of(trace, EventKind::kPush, 5)[0].commit_number, 1);
}

TEST_F(TraceTest, TheVoteIsTheDaemonsAndStandsAtEachRank) {
  Step(1);
  const Trace trace = MakeTrace(recorder_, 1, kMost);
  for (int rank : {4, 5}) {
    const std::vector<Span> votes = Of(trace, EventKind::kVote, rank);
    ASSERT_EQ(votes.size(), 1u);
    EXPECT_EQ(votes[0].begin_ns, 1040);
    EXPECT_EQ(votes[0].end_ns, 1050);
    EXPECT_EQ(votes[0].commit_number, 1);
  }
}

TEST_F(TraceTest, AHoldIsThePartOfAnApplyThatWaitedForReaders) {
  Step(1);
  for (int rank : {0, 1}) {
    Work(rank, EventKind::kApply, EventEdge::kBegin, 2, 1100 + rank);
    Work(rank, EventKind::kApply, EventEdge::kEnd, 2, 1200);
  }
  const std::vector<ReaderWait> waits = {
      {.begin_ns = 1000, .end_ns = 1100, .readers = {"of another writer"}},
      {.begin_ns = 1101, .end_ns = 1150, .readers = {"a", "b"}},
      {.begin_ns = 1250, .readers = {"after it"}},
  };
  const Trace trace = MakeTrace(recorder_, 1, kMost, waits);
  for (int rank : {4, 5}) {
    const std::vector<Span> holds = Of(trace, EventKind::kHold, rank);
    ASSERT_EQ(holds.size(), 1u);
    EXPECT_EQ(holds[0].begin_ns, 1101);
    EXPECT_EQ(holds[0].end_ns, 1150);
    EXPECT_EQ(holds[0].command, 2);
    EXPECT_EQ(holds[0].commit_number, 1);
    EXPECT_THAT(holds[0].readers, ElementsAre("a", "b"));
  }
}

TEST_F(TraceTest, AHoldThatIsUnderWayHasNoEnd) {
  Step(1);
  Work(0, EventKind::kApply, EventEdge::kBegin, 2, 1100);
  const std::vector<ReaderWait> waits = {{.begin_ns = 1110, .readers = {"a"}}};
  const std::vector<Span> holds = Of(MakeTrace(recorder_, 1, kMost, waits), EventKind::kHold, 4);
  ASSERT_EQ(holds.size(), 1u);
  EXPECT_EQ(holds[0].begin_ns, 1110);
  EXPECT_EQ(holds[0].end_ns, std::nullopt);
}

TEST_F(TraceTest, TheLastStepsAreThoseThatAreAskedFor) {
  for (int64_t number = 1; number <= 5; ++number) Step(number);
  Send(0, 11, 6000);  // of a step that is under way
  const Trace trace = MakeTrace(recorder_, 2, kMost);
  EXPECT_FALSE(trace.truncated);
  std::vector<int64_t> steps;
  for (const Span& span : trace.spans) steps.push_back(span.commit_number);
  EXPECT_EQ(*std::min_element(steps.begin(), steps.end()), 5);
  EXPECT_EQ(*std::max_element(steps.begin(), steps.end()), 6);
}

TEST_F(TraceTest, WhatIsOverwrittenOrTooMuchIsSaid) {
  for (int64_t number = 1; number <= 2000; ++number) Step(number);
  EXPECT_FALSE(MakeTrace(recorder_, 3, kMost).truncated);
  EXPECT_TRUE(MakeTrace(recorder_, 1500, kMost).truncated);
  const Trace few = MakeTrace(recorder_, 3, 4);
  EXPECT_TRUE(few.truncated);
  EXPECT_EQ(few.spans.size(), 4u);
  EXPECT_EQ(few.spans.back().commit_number, 2000) << "the last ones";
}

TEST_F(TraceTest, WhatFollowsAWaitEndsIt) {
  Step(1);
  Send(0, 3, 2000);
  Send(1, 3, 2000);
  recorder_.of(0).pushes.Write(
      {.kind = EventKind::kWait, .edge = EventEdge::kBegin, .peer = 1, .time_ns = 2010, .command = 3});
  std::vector<Span> waits = Of(MakeTrace(recorder_, 1, kMost), EventKind::kWait, 4);
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].end_ns, std::nullopt);
  EXPECT_EQ(waits[0].waits_for, 5);
  Work(0, EventKind::kPush, EventEdge::kBegin, 3, 2020);
  waits = Of(MakeTrace(recorder_, 1, kMost), EventKind::kWait, 4);
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].end_ns, 2020);
}

TEST_F(TraceTest, WhatOneRanksRingHasForgottenIsNotMissing) {
  for (int64_t number = 1; number <= 2000; ++number) Step(number);
  // Its ring holds later commands than that of rank 4.
  for (int64_t command = 4001; command <= 4005; ++command) Send(1, command, 3'000'000);
  for (int64_t command = 4001; command <= 4005; ++command) Send(0, command, 3'000'001 + command);
  for (int64_t command = 4006; command <= 4015; ++command) Send(1, command, 3'000'002);
  for (const Span& span : Of(MakeTrace(recorder_, 100, kMost), EventKind::kCommand, 4)) {
    EXPECT_TRUE(span.end_ns.has_value()) << "command " << span.command;
  }
  EXPECT_THAT(LastWords(recorder_, 5'000'000)[0], AllOf(HasSubstr("command 4005 "), Not(HasSubstr("waited"))));
}

TEST_F(TraceTest, LastWordsNameWhoIsMissing) {
  EXPECT_THAT(LastWords(recorder_, 0), ElementsAre("rank 4: no command", "rank 5: no command"));
  Step(1);
  Send(0, 3, 2'000'000, 2);
  EXPECT_THAT(LastWords(recorder_, 5'000'000),
              ElementsAre("rank 4: sent command 3 3ms ago, waited for rank 5 in command 3 for 3ms",
                          AllOf(HasSubstr("rank 5: sent command 2 "), Not(HasSubstr("waited")))));
}

}  // namespace
}  // namespace paramshard::server
