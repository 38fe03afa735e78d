#include "server/world/coordinator.h"

#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/world/coordinator_cluster.h"
#include "tests/server/world/recording_listener.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::Pair;

// Asks for the answer that is there now.
constexpr absl::Duration kNow = absl::ZeroDuration();

// Node 0 serves ranks 0 and 1, node 1 rank 2.
class CoordinatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(coordinator_.Join(0, 2, &sinks_[0]));
    ASSERT_OK(coordinator_.Join(1, 1, &sinks_[1]));
  }

  // Starts an epoch at this commit number and takes the messages about it.
  int64_t StartEpoch(int64_t commit_number = 0, int shard_size = 3) {
    EXPECT_OK(coordinator_.Step(0, MakeReport({0, 1}, commit_number, commit_number, 1, shard_size)));
    EXPECT_OK(coordinator_.Step(1, MakeReport({2}, commit_number, commit_number, 1, shard_size)));
    const ReceivedMessage first = sinks_[0].Next();
    const ReceivedMessage second = sinks_[1].Next();
    EXPECT_TRUE(first.start && second.start) << first.why << second.why;
    EXPECT_EQ(first.epoch, second.epoch);
    return first.epoch;
  }

  void ExpectRefusal(absl::StatusCode code, const std::string& text) {
    for (RecordingListener& sink : sinks_) {
      const ReceivedMessage message = sink.Next();
      EXPECT_TRUE(message.refused);
      EXPECT_THAT(message.why, StatusIs(code, HasSubstr(text)));
    }
  }

  void ExpectEnd(int64_t epoch, absl::StatusCode code, const std::string& text) {
    for (RecordingListener& sink : sinks_) {
      const ReceivedMessage message = sink.Next();
      EXPECT_FALSE(message.start);
      EXPECT_EQ(message.epoch, epoch);
      EXPECT_THAT(message.why, StatusIs(code, HasSubstr(text)));
    }
  }

  // A vote of a node that has sent these commands, and what it has heard since.
  void VoteAfter(int node, int64_t epoch, int64_t command, absl::uint128 hash) {
    CommitVote vote = node == 0 ? MakeVote(epoch, 1, {{0, 0.5, 0}, {1, 0.25, 0}}) : MakeVote(epoch, 1, {{2, 0.125, 0}});
    vote.commands = {.number = command, .hash = hash};
    EXPECT_THAT(coordinator_.Vote(node, vote, kNow), StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  void ExpectWanted(int node, const CommandsThrough& unless) {
    EXPECT_EQ(sinks_[node].Next().commands_wanted_unless, unless) << "node " << node;
  }

  absl::StatusOr<CommitDecision> Vote0(int64_t epoch, int64_t commit_number, absl::Duration wait = kNow) {
    return coordinator_.Vote(0, MakeVote(epoch, commit_number, {{0, 0.5, 0}, {1, 0.25, 0}}), wait);
  }
  absl::StatusOr<CommitDecision> Vote1(int64_t epoch, int64_t commit_number, absl::Duration wait = kNow) {
    return coordinator_.Vote(1, MakeVote(epoch, commit_number, {{2, 0.125, 0}}), wait);
  }

  std::optional<std::string> WhyNoEpoch(const std::string& model) {
    const auto waiting = coordinator_.WaitingModels();
    const auto found = waiting.find(model);
    return found == waiting.end() ? std::nullopt : std::optional(found->second);
  }

  RecordingListener sinks_[2];
  Coordinator coordinator_{2};
};

TEST_F(CoordinatorTest, StartsAnEpochWhenAllRanksAreAttached) {
  EXPECT_OK(coordinator_.Step(0, MakeReport({0})));
  EXPECT_OK(coordinator_.Step(1, MakeReport({2})));
  EXPECT_TRUE(sinks_[0].empty());
  EXPECT_OK(coordinator_.Step(0, MakeReport({1, 0})));
  const ReceivedMessage message = sinks_[1].Next();
  EXPECT_TRUE(message.start);
  EXPECT_EQ(message.model, "m");
  EXPECT_EQ(message.epoch, 1);
}

TEST_F(CoordinatorTest, SaysWhyNoEpochStartsWhileTrainersWait) {
  EXPECT_EQ(WhyNoEpoch("m"), std::nullopt) << "no such model";
  EXPECT_OK(coordinator_.Step(0, MakeReport({})));
  EXPECT_EQ(WhyNoEpoch("m"), std::nullopt) << "nobody waits";
  EXPECT_OK(coordinator_.Step(0, MakeReport({0})));
  EXPECT_THAT(WhyNoEpoch("m"), Optional(std::string("waits for ranks 1..2 (1 of 3 attached)")));
  EXPECT_OK(coordinator_.Step(0, MakeReport({1})));
  EXPECT_THAT(WhyNoEpoch("m"), Optional(std::string("waits for ranks 0, 2 (1 of 3 attached)")));
  EXPECT_OK(coordinator_.Step(0, MakeReport({0, 1})));
  EXPECT_OK(coordinator_.Step(1, MakeReport({2}, /*commit_number=*/7)));
  ExpectRefusal(absl::StatusCode::kFailedPrecondition, "want one state on all nodes");
  EXPECT_THAT(WhyNoEpoch("m"),
              Optional(AllOf(HasSubstr("waits for ranks 0..2 (0 of 3 attached)"),
                             HasSubstr("the last start was refused: start epoch of m: want one state on all nodes"))));
  StartEpoch();
  EXPECT_EQ(WhyNoEpoch("m"), std::nullopt) << "one runs";
}

TEST_F(CoordinatorTest, ListsAModelThatOnlyOtherNodesHave) {
  EXPECT_OK(coordinator_.Step(1, MakeReport({2})));
  EXPECT_THAT(coordinator_.WaitingModels(), ElementsAre(Pair("m", HasSubstr("1 of 3"))));
}

TEST_F(CoordinatorTest, ForgetsARefusalWhenTheRefusedStateIsGone) {
  const auto refuse = [&] {
    EXPECT_OK(coordinator_.Step(0, MakeReport({0, 1})));
    EXPECT_OK(coordinator_.Step(1, MakeReport({2}, /*commit_number=*/7)));
    ExpectRefusal(absl::StatusCode::kFailedPrecondition, "want one state on all nodes");
    EXPECT_THAT(WhyNoEpoch("m"), Optional(HasSubstr("the last start was refused")));
  };
  refuse();
  EXPECT_OK(coordinator_.Step(1, MakeReport({}, /*commit_number=*/7)));
  EXPECT_THAT(WhyNoEpoch("m"), Optional(HasSubstr("the last start was refused"))) << "nothing has changed";
  EXPECT_OK(coordinator_.Step(1, ModelDeleted{.model = "m"}));
  EXPECT_EQ(WhyNoEpoch("m"), std::nullopt) << "deleted";
  refuse();
  EXPECT_OK(coordinator_.Step(1, MakeReport({})));
  EXPECT_EQ(WhyNoEpoch("m"), std::nullopt) << "another state";
}

TEST_F(CoordinatorTest, TellsTheLikelyCauseOfDifferentSpecsFirst) {
  EXPECT_OK(coordinator_.Step(0, MakeReport({0, 1}, 7, 7, /*fingerprint=*/1)));
  EXPECT_OK(coordinator_.Step(1, MakeReport({2}, 7, 7, /*fingerprint=*/2)));
  for (RecordingListener& sink : sinks_) {
    EXPECT_THAT(sink.Next().why,
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         EndsWith("run one build on all nodes, and start all trainers with the same flags")))
        << "both are trained: nothing is said of a deletion";
  }
  ModelReport fresh = MakeReport({2}, 0, 0, /*fingerprint=*/2);
  fresh.fresh = true;
  EXPECT_OK(coordinator_.Step(0, MakeReport({0, 1}, 7, 7, /*fingerprint=*/1)));
  EXPECT_OK(coordinator_.Step(1, fresh));
  ExpectRefusal(absl::StatusCode::kFailedPrecondition, "delete it on node 1 (rank 2), where it is untrained");
}

TEST_F(CoordinatorTest, NodesThatAreHereAreCounted) {
  EXPECT_THAT(AbsentNodes(coordinator_), testing::IsEmpty());
  coordinator_.Leave(1);
  EXPECT_THAT(AbsentNodes(coordinator_), ElementsAre(1));
  ASSERT_OK(coordinator_.Join(1, 1, &sinks_[1]));
  EXPECT_THAT(AbsentNodes(coordinator_), testing::IsEmpty());
}

TEST_F(CoordinatorTest, NeedsNewReportsForTheNextEpoch) {
  const int64_t first = StartEpoch();
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = first, .why = absl::AbortedError("rank 1 left")}));
  ExpectEnd(first, absl::StatusCode::kAborted, "rank 1 left");
  EXPECT_OK(coordinator_.Step(0, MakeReport({0, 1})));
  EXPECT_TRUE(sinks_[0].empty());
  EXPECT_OK(coordinator_.Step(1, MakeReport({2})));
  EXPECT_GT(sinks_[0].Next().epoch, first);
}

TEST_F(CoordinatorTest, ReportsDuringAnEpochDoNotCountForTheNext) {
  const int64_t first = StartEpoch();
  EXPECT_OK(coordinator_.Step(0, MakeReport({0, 1})));
  EXPECT_OK(coordinator_.Step(1, MakeReport({2})));
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = first, .why = absl::AbortedError("over")}));
  ExpectEnd(first, absl::StatusCode::kAborted, "over");
  EXPECT_OK(coordinator_.Step(1, MakeReport({2})));
  EXPECT_TRUE(sinks_[0].empty());
}

TEST_F(CoordinatorTest, AnEndOfAnotherEpochIsIgnored) {
  const int64_t epoch = StartEpoch();
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = epoch - 1, .why = absl::AbortedError("late")}));
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = epoch + 1, .why = absl::AbortedError("early")}));
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "other", .epoch = epoch, .why = absl::AbortedError("other")}));
  EXPECT_TRUE(sinks_[0].empty());
}

// Numbers are equal after an import into one node only.
TEST_F(CoordinatorTest, HistoriesThatDifferAreNamedWithTheWayOut) {
  const auto report = [](std::vector<int> ranks, const std::string& history) {
    ModelReport made = MakeReport(std::move(ranks), 7, 5);
    made.history_id = history;
    return made;
  };
  EXPECT_OK(coordinator_.Step(0, report({0, 1}, "aa")));
  EXPECT_OK(coordinator_.Step(1, report({2}, "bb")));
  ExpectRefusal(
      absl::StatusCode::kFailedPrecondition,
      "want one history on all nodes, got version 5 (commit 7) of history aa on node 0 (ranks 0..1), version 5 "
      "(commit 7) of history bb on node 1 (rank 2): they were imported into differently; import the same into every "
      "daemon");
  EXPECT_OK(coordinator_.Step(1, report({2}, "aa")));
  EXPECT_OK(coordinator_.Step(0, report({0, 1}, "aa")));
  EXPECT_TRUE(sinks_[0].Next().start);
}

// Ids are drawn by every node for itself.
TEST_F(CoordinatorTest, NodesThatBeganAlikeTakeTheIdOfNode0) {
  const auto report = [](std::vector<int> ranks, const std::string& lineage, const std::string& id, bool untouched) {
    ModelReport made = MakeReport(std::move(ranks));
    made.lineage = lineage;
    made.history_id = id;
    made.untouched = untouched;
    return made;
  };
  EXPECT_OK(coordinator_.Step(0, report({0, 1}, "spec", "aa", true)));
  EXPECT_OK(coordinator_.Step(1, report({2}, "spec", "bb", true)));
  for (RecordingListener& sink : sinks_) {
    const ReceivedMessage message = sink.Next();
    EXPECT_TRUE(message.start);
    EXPECT_EQ(message.history_id, "aa");
  }
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = 1, .why = absl::AbortedError("over")}));
  ExpectEnd(1, absl::StatusCode::kAborted, "over");
  // One node was imported into, or has made commits since.
  coordinator_.Step(0, report({0, 1}, "import", "cc", true)).IgnoreError();
  EXPECT_OK(coordinator_.Step(1, report({2}, "spec", "aa", true)));
  ExpectRefusal(absl::StatusCode::kFailedPrecondition,
                "want one history on all nodes, got version 0 (commit 0) of history cc on node 0");
  EXPECT_OK(coordinator_.Step(0, report({0, 1}, "spec", "aa", false)));
  EXPECT_OK(coordinator_.Step(1, report({2}, "spec", "bb", true)));
  ExpectRefusal(absl::StatusCode::kFailedPrecondition,
                "want one history on all nodes, got version 0 (commit 0) of history aa on node 0");
  // An import that names the id.
  coordinator_.Step(0, report({0, 1}, "spec", "aa", false)).IgnoreError();
  EXPECT_OK(coordinator_.Step(1, report({2}, "aa", "aa", true)));
  EXPECT_TRUE(sinks_[1].Next().start);
}

TEST_F(CoordinatorTest, StatesThatDifferAreNamedWithTheWayOut) {
  const auto report = [](std::vector<int> ranks, int64_t commit_number) {
    ModelReport made = MakeReport(std::move(ranks), commit_number, 5);
    made.history_id = "aa";
    return made;
  };
  EXPECT_OK(coordinator_.Step(0, report({0, 1}, 7)));
  EXPECT_OK(coordinator_.Step(1, report({2}, 6)));
  ExpectRefusal(
      absl::StatusCode::kFailedPrecondition,
      "version 5 (commit 7) of history aa on node 0 (ranks 0..1), version 5 (commit 6) of history aa on node 1 "
      "(rank 2): export from one and import the same into both");
  // The trainers that waited are gone; those that attach after the import start an epoch.
  coordinator_.Step(1, MakeReport({2}, 7, 5)).IgnoreError();
  EXPECT_TRUE(sinks_[0].empty());
  EXPECT_OK(coordinator_.Step(0, MakeReport({0, 1}, 7, 5)));
  EXPECT_TRUE(sinks_[0].Next().start);
}

TEST_F(CoordinatorTest, TrainersThatWaitForAModelThatANodeHasLostAreTold) {
  ModelReport lost;
  lost.model = "m";
  lost.lost = absl::DataLossError("model m: its state was lost with the server before this one");
  EXPECT_OK(coordinator_.Step(1, lost));
  EXPECT_TRUE(sinks_[0].empty()) << "nobody waits";
  EXPECT_OK(coordinator_.Step(0, MakeReport({0})));
  ExpectRefusal(absl::StatusCode::kDataLoss, "got none on node 1 (rank 2): model m: its state was lost");
  EXPECT_OK(coordinator_.Step(1, MakeReport({2})));
  EXPECT_OK(coordinator_.Step(0, MakeReport({0, 1})));
  EXPECT_TRUE(sinks_[0].Next().start);
}

TEST_F(CoordinatorTest, SpecsThatDifferAreNamed) {
  EXPECT_OK(coordinator_.Step(0, MakeReport({0, 1}, 0, 0, 0xabc)));
  EXPECT_OK(coordinator_.Step(1, MakeReport({2}, 0, 0, 0xdef)));
  ExpectRefusal(absl::StatusCode::kFailedPrecondition, "0000000000000abc on node 0 (ranks 0..1), 0000000000000def on");
}

TEST_F(CoordinatorTest, ALostNodeEndsEveryEpochAndIsNamed) {
  const int64_t epoch = StartEpoch();
  coordinator_.Leave(1);
  const ReceivedMessage message = sinks_[0].Next();
  EXPECT_EQ(message.epoch, epoch);
  EXPECT_THAT(message.why, StatusIs(absl::StatusCode::kUnavailable,
                                    HasSubstr("node 1 (rank 2) lost: attach again when its daemon serves again")));
  EXPECT_TRUE(sinks_[1].empty());
  // Its reports have gone with it.
  ASSERT_OK(coordinator_.Join(1, 1, &sinks_[1]));
  EXPECT_OK(coordinator_.Step(0, MakeReport({0, 1})));
  EXPECT_TRUE(sinks_[0].empty());
  EXPECT_OK(coordinator_.Step(1, MakeReport({2})));
  EXPECT_EQ(sinks_[1].Next().epoch, epoch + 1);
}

TEST_F(CoordinatorTest, JoinRefusesWhatDoesNotFitTheWorld) {
  EXPECT_THAT(coordinator_.Join(1, 1, &sinks_[1]), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("node 1")));
  EXPECT_THAT(coordinator_.Join(2, 1, &sinks_[1]), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0..1")));
  EXPECT_THAT(coordinator_.Join(-1, 1, &sinks_[1]), StatusIs(absl::StatusCode::kInvalidArgument));
  coordinator_.Leave(1);
  EXPECT_THAT(coordinator_.Join(1, 4, &sinks_[1]),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want 1 --device as before, got 4; ")));
}

TEST_F(CoordinatorTest, NobodyHasMoreDevicesThanAShardGroup) {
  Coordinator coordinator(2);
  ASSERT_OK(coordinator.Join(0, 1, &sinks_[0]));
  for (const int devices : {-1, 0, 4097, std::numeric_limits<int>::max()}) {
    EXPECT_THAT(coordinator.Join(1, devices, &sinks_[1]),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat("got ", devices))));
  }
  EXPECT_OK(coordinator.Join(1, 4096, &sinks_[1]));
}

TEST_F(CoordinatorTest, AReportThatSaysMoreThanADaemonHasToSayIsRefused) {
  std::vector<ModelReport> reports(5, MakeReport({2}));
  reports[0].model = std::string(513, 'm');
  reports[1].attached_ranks = {2, 2};
  reports[2].history_id = std::string(513, 'h');
  reports[3].lineage = std::string(513, 'l');
  reports[4].lost = absl::DataLossError(std::string(100'000, 'w'));
  for (const ModelReport& report : reports) {
    EXPECT_OK(coordinator_.Step(1, report));
    const ReceivedMessage message = sinks_[1].Next();
    EXPECT_TRUE(message.refused);
    EXPECT_THAT(message.why, StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_LE(message.model.size(), 512u);
  }
  StartEpoch();
}

TEST_F(CoordinatorTest, AwaitWorldNamesTheMissingNodes) {
  Coordinator coordinator(3);
  EXPECT_OK(coordinator.Join(0, 1, &sinks_[0]));
  EXPECT_THAT(coordinator.AwaitWorld(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("missing: node 1, node 2")));
  EXPECT_OK(coordinator_.AwaitWorld(absl::InfiniteDuration()));
  EXPECT_THAT(coordinator_.device_counts(), ElementsAre(2, 1));
}

TEST_F(CoordinatorTest, DecidesWhenAllNodesHaveVotedAndAnswersForEver) {
  const int64_t epoch = StartEpoch();
  EXPECT_THAT(Vote1(epoch, 1), StatusIs(absl::StatusCode::kDeadlineExceeded));
  ASSERT_OK_AND_ASSIGN(const CommitDecision decision, Vote0(epoch, 1));
  EXPECT_TRUE(decision.apply);
  EXPECT_EQ(decision.square_sum, 0.875);
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = epoch, .why = absl::AbortedError("over")}));
  ASSERT_OK_AND_ASSIGN(const CommitDecision repeated, Vote1(epoch, 1));
  EXPECT_EQ(repeated.square_sum, 0.875);
}

TEST_F(CoordinatorTest, ADecisionIsOfItsHistoryAlone) {
  const int64_t epoch = StartEpoch();
  CommitVote votes[] = {MakeVote(epoch, 1, {{0, 0.5, 0}, {1, 0.25, 0}}), MakeVote(epoch, 1, {{2, 0.125, 0}})};
  for (CommitVote& vote : votes) vote.history_id = "h";
  EXPECT_FALSE(coordinator_.Vote(1, votes[1], kNow).ok());
  ASSERT_OK(coordinator_.Vote(0, votes[0], kNow));
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = epoch, .why = absl::AbortedError("over")}));
  CommitQuery query{.model = "m", .history_id = "h", .epoch = epoch, .commit_number = 1};
  EXPECT_OK(coordinator_.QueryCommit(1, query));
  query.history_id = "another";
  EXPECT_THAT(coordinator_.QueryCommit(1, query), StatusIs(absl::StatusCode::kDataLoss));
  votes[1].history_id = "another";
  EXPECT_THAT(coordinator_.Vote(1, votes[1], kNow), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(CoordinatorTest, TheNormIsOfTheFirstReplicaInRankOrder) {
  const int64_t epoch = StartEpoch(0, /*shard_size=*/2);
  // 1e16 + 1 + 1 depends on the order; rank 2 is of another replica.
  EXPECT_FALSE(coordinator_.Vote(1, MakeVote(epoch, 1, {{2, 512, 0}}), kNow).ok());
  ASSERT_OK_AND_ASSIGN(const CommitDecision decision,
                       coordinator_.Vote(0, MakeVote(epoch, 1, {{1, 1, 0}, {0, 1e16, 0}}), kNow));
  EXPECT_EQ(decision.square_sum, 1e16 + 1);
}

TEST_F(CoordinatorTest, ANonFiniteElementAnywhereSkipsOnAllNodes) {
  const int64_t epoch = StartEpoch();
  EXPECT_FALSE(coordinator_.Vote(1, MakeVote(epoch, 1, {{2, 0, 3}}), kNow).ok());
  ASSERT_OK_AND_ASSIGN(const CommitDecision decision, Vote0(epoch, 1));
  EXPECT_FALSE(decision.apply);
  EXPECT_EQ(decision.non_finite_count, 3);
  // A skipped commit counts.
  EXPECT_THAT(Vote0(epoch, 2), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(CoordinatorTest, VotesThatWaitAreAbortedByTheEndOfTheEpoch) {
  const int64_t epoch = StartEpoch();
  auto waiting = std::async(std::launch::async, [&] { return Vote1(epoch, 1, absl::InfiniteDuration()); });
  EXPECT_OK(
      coordinator_.Step(0, EndEpoch{.model = "m", .epoch = epoch, .why = absl::DeadlineExceededError("rank 0 hangs")}));
  EXPECT_THAT(waiting.get(), StatusIs(absl::StatusCode::kAborted,
                                      AllOf(HasSubstr("ended before the decision"), HasSubstr("rank 0 hangs"))));
  EXPECT_THAT(Vote0(epoch, 1), StatusIs(absl::StatusCode::kAborted));
}

TEST_F(CoordinatorTest, VotesOnDifferentCommitsAreRefusedNamingBoth) {
  const int64_t epoch = StartEpoch(4);
  EXPECT_THAT(Vote0(epoch, 5), StatusIs(absl::StatusCode::kDeadlineExceeded));
  const auto message =
      AllOf(HasSubstr("node 0 (ranks 0..1) votes on commit 5"), HasSubstr("node 1 (rank 2) on commit 6"));
  EXPECT_THAT(Vote1(epoch, 6), StatusIs(absl::StatusCode::kFailedPrecondition, message));
  EXPECT_THAT(Vote0(epoch, 5), StatusIs(absl::StatusCode::kFailedPrecondition, message));
  ExpectEnd(epoch, absl::StatusCode::kFailedPrecondition, "votes on commit 5");
  EXPECT_THAT(coordinator_.QueryCommit(1, {.model = "m", .epoch = epoch, .commit_number = 5}),
              StatusIs(absl::StatusCode::kAborted));
}

// No thread waits for the decision.
TEST_F(CoordinatorTest, VotersAreCalledOnceWithTheDecisionAndWithoutALock) {
  const int64_t epoch = StartEpoch();
  std::vector<int> called;
  const auto vote = [&](int node, std::vector<RankSum> sums) {
    return coordinator_.Vote(node, MakeVote(epoch, 1, std::move(sums)), [&, node](const auto& decision) {
      called.push_back(node);
      ASSERT_OK(decision);
      EXPECT_EQ(decision->square_sum, 0.875);
      EXPECT_THAT(coordinator_.device_counts(), ElementsAre(2, 1)) << "it may be asked";
    });
  };
  vote(1, {{2, 0.125, 0}});
  vote(1, {{2, 0.125, 0}});
  EXPECT_THAT(called, testing::IsEmpty());
  vote(0, {{0, 0.5, 0}, {1, 0.25, 0}});
  EXPECT_THAT(called, testing::UnorderedElementsAre(0, 1, 1));
  vote(1, {{2, 0.125, 0}});
  EXPECT_EQ(called.size(), 4u) << "what is decided is answered at once";
}

TEST_F(CoordinatorTest, WhoHasGivenUpIsNotCalledAndTheVoteCounts) {
  const int64_t epoch = StartEpoch();
  int called = 0;
  const Coordinator::Wait first =
      coordinator_.Vote(1, MakeVote(epoch, 1, {{2, 0.125, 0}}), [&](const auto&) { ++called; });
  EXPECT_TRUE(coordinator_.GiveUp(first));
  EXPECT_FALSE(coordinator_.GiveUp(first));
  EXPECT_OK(Vote0(epoch, 1));
  EXPECT_EQ(called, 0);
  const Coordinator::Wait second =
      coordinator_.Vote(1, MakeVote(epoch, 2, {{2, 0.125, 0}}), [&](const auto&) { ++called; });
  EXPECT_OK(Vote0(epoch, 2));
  EXPECT_FALSE(coordinator_.GiveUp(second)) << "it was called";
  EXPECT_EQ(called, 1);
}

TEST_F(CoordinatorTest, ReadersAreCalledWithTheirValue) {
  const int64_t epoch = StartEpoch();
  std::vector<absl::StatusOr<std::string>> values;
  const auto get = [&](const char* key) {
    return coordinator_.Get(0, "m", epoch, key, [&](const auto& value) { values.push_back(value); });
  };
  get("k");
  get("k");
  EXPECT_TRUE(coordinator_.GiveUp(get("k")));
  get("never");
  EXPECT_OK(coordinator_.Put(0, "m", epoch, "k", "v"));
  EXPECT_THAT(values, ElementsAre(IsOkAndHolds("v"), IsOkAndHolds("v")));
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = epoch, .why = absl::AbortedError("over")}));
  ASSERT_EQ(values.size(), 3u);
  EXPECT_THAT(values[2], StatusIs(absl::StatusCode::kAborted));
}

TEST_F(CoordinatorTest, WhoGivesUpLateTakesNobodysPlaceInTheNextEpoch) {
  const int64_t epoch = StartEpoch();
  const auto ignore = [](const auto&) {};
  const Coordinator::Wait reader = coordinator_.Get(0, "m", epoch, "k", ignore);
  const Coordinator::Wait voter = coordinator_.Vote(1, MakeVote(epoch, 1, {{2, 0.125, 0}}), ignore);
  const Coordinator::Wait part = coordinator_.GetParts(1, "m", epoch, "k", ignore);
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = epoch, .why = absl::AbortedError("over")}));
  const int64_t next = (sinks_[0].Next(), sinks_[1].Next(), StartEpoch());
  const Coordinator::Wait next_reader = coordinator_.Get(0, "m", next, "k", ignore);
  const Coordinator::Wait next_voter = coordinator_.Vote(1, MakeVote(next, 1, {{2, 0.125, 0}}), ignore);
  const Coordinator::Wait next_part = coordinator_.GetParts(1, "m", next, "k", ignore);
  for (const Coordinator::Wait& gone : {reader, voter, part}) EXPECT_FALSE(coordinator_.GiveUp(gone));
  for (const Coordinator::Wait& waits : {next_reader, next_voter, next_part}) EXPECT_TRUE(coordinator_.GiveUp(waits));
}

TEST_F(CoordinatorTest, AVoteOnACommitThatIsNotNextIsRefused) {
  const int64_t epoch = StartEpoch(4);
  EXPECT_THAT(Vote0(epoch, 4),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("want commit 5, got a vote on commit 4")));
}

TEST_F(CoordinatorTest, AVoteWithoutASumForEachRankIsRefused) {
  const int64_t epoch = StartEpoch();
  EXPECT_THAT(coordinator_.Vote(0, MakeVote(epoch, 1, {{0, 1, 0}}), kNow),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("node 0 (ranks 0..1)")));
  EXPECT_THAT(coordinator_.Vote(1, MakeVote(epoch, 1, {{1, 1, 0}}), kNow),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(sinks_[0].empty());
}

TEST_F(CoordinatorTest, AnImportOfAnOlderStateForgetsTheDecisionsAfterIt) {
  const int64_t first = StartEpoch();
  for (int64_t commit = 1; commit <= 3; ++commit) {
    EXPECT_FALSE(Vote1(first, commit).ok());
    EXPECT_OK(Vote0(first, commit));
  }
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = first, .why = absl::AbortedError("over")}));
  ExpectEnd(first, absl::StatusCode::kAborted, "over");
  const int64_t second = StartEpoch(/*commit_number=*/1);
  EXPECT_THAT(Vote1(second, 2), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_OK(Vote1(first, 1));
  EXPECT_THAT(Vote1(first, 2), StatusIs(absl::StatusCode::kDataLoss)) << "somebody may have applied it";
}

TEST_F(CoordinatorTest, RemembersTheLastDecisionsOnly) {
  const int64_t epoch = StartEpoch();
  const int64_t commits = static_cast<int64_t>(kKeptDecisions) + 1;
  for (int64_t commit = 1; commit <= commits; ++commit) {
    EXPECT_FALSE(Vote1(epoch, commit).ok());
    EXPECT_OK(Vote0(epoch, commit));
  }
  EXPECT_OK(Vote1(epoch, 2));
  EXPECT_THAT(Vote1(epoch, 1), StatusIs(absl::StatusCode::kFailedPrecondition));
}

// It may go on without a node that has voted.
TEST_F(CoordinatorTest, ADecisionThatIsForgottenStaysInDoubt) {
  const int64_t first = StartEpoch();
  EXPECT_FALSE(Vote1(first, 1).ok());
  ASSERT_OK(Vote0(first, 1));
  EXPECT_FALSE(Vote1(first, 2).ok());
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = first, .why = absl::AbortedError("over")}));
  ExpectEnd(first, absl::StatusCode::kAborted, "over");
  const int64_t second = StartEpoch(/*commit_number=*/1);
  for (int64_t commit = 2; commit < 2 + static_cast<int64_t>(kKeptDecisions); ++commit) {
    EXPECT_FALSE(Vote1(second, commit).ok());
    ASSERT_OK(Vote0(second, commit));
  }
  const auto ask = [&](int64_t epoch, int64_t commit_number) {
    return coordinator_.QueryCommit(1, {.model = "m", .epoch = epoch, .commit_number = commit_number});
  };
  const auto forgotten = StatusIs(absl::StatusCode::kDataLoss, HasSubstr("remembers the last 64 decisions"));
  EXPECT_THAT(Vote1(first, 1), forgotten);
  EXPECT_THAT(ask(first, 1), forgotten);
  EXPECT_THAT(ask(first, 2), StatusIs(absl::StatusCode::kAborted)) << "it was decided later";
  EXPECT_OK(ask(second, 2));
}

TEST_F(CoordinatorTest, AVoteOfAnEpochThatACoordinatorBeforeHasStartedStaysInDoubt) {
  EXPECT_THAT(Vote1(3, 9), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("unknown to node 0")));
  StartEpoch();
  EXPECT_THAT(Vote1(3, 9), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(CoordinatorTest, ADecisionIsWrittenDownOnceWithWhatAllAreTold) {
  const int64_t epoch = StartEpoch();
  std::vector<double> written;
  CommitVote vote = MakeVote(epoch, 1, {{0, 0.5, 0}, {1, 0.25, 0}});
  vote.write_down = [&](const CommitDecision& decision) {
    written.push_back(decision.square_sum);
    return absl::OkStatus();
  };
  EXPECT_THAT(coordinator_.Vote(0, vote, kNow), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(written, testing::IsEmpty());
  EXPECT_OK(Vote1(epoch, 1));
  EXPECT_OK(Vote1(epoch, 1));
  EXPECT_THAT(written, ElementsAre(0.875));
}

TEST_F(CoordinatorTest, WhatCannotBeWrittenDownIsNotDecided) {
  const int64_t epoch = StartEpoch();
  CommitVote vote = MakeVote(epoch, 1, {{0, 0.5, 0}, {1, 0.25, 0}});
  vote.write_down = [](const CommitDecision&) { return absl::FailedPreconditionError("no"); };
  EXPECT_THAT(coordinator_.Vote(0, vote, kNow), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(Vote1(epoch, 1), StatusIs(absl::StatusCode::kAborted, HasSubstr("failed to write the decision: no")));
  ExpectEnd(epoch, absl::StatusCode::kInternal, "failed to write the decision");
  EXPECT_THAT(Vote0(epoch, 1), StatusIs(absl::StatusCode::kAborted));
}

TEST_F(CoordinatorTest, AQuestionEndsTheEpochSoThatNothingIsDecidedAnyMore) {
  const int64_t epoch = StartEpoch();
  EXPECT_FALSE(Vote1(epoch, 1).ok());
  const CommitQuery query{.model = "m", .epoch = epoch, .commit_number = 1};
  EXPECT_THAT(coordinator_.QueryCommit(1, query), StatusIs(absl::StatusCode::kAborted));
  ExpectEnd(epoch, absl::StatusCode::kUnavailable, "node 1 (rank 2) was restarted, and asks what became of commit 1");
  EXPECT_THAT(Vote0(epoch, 1), StatusIs(absl::StatusCode::kAborted)) << "with it all would have voted";
}

TEST_F(CoordinatorTest, AQuestionAboutWhatWasDecidedIsAnsweredWithIt) {
  const int64_t epoch = StartEpoch();
  EXPECT_FALSE(Vote1(epoch, 1).ok());
  ASSERT_OK(Vote0(epoch, 1));
  ASSERT_OK_AND_ASSIGN(const CommitDecision decision,
                       coordinator_.QueryCommit(1, {.model = "m", .epoch = epoch, .commit_number = 1}));
  EXPECT_TRUE(decision.apply);
  EXPECT_EQ(decision.square_sum, 0.875);
}

// Coordinator of a restarted node 0. It knows epoch 5, whose last decided commit is 8.
class RestartedCoordinatorTest : public ::testing::Test {
 protected:
  absl::StatusOr<CommitDecision> Ask(int64_t epoch, int64_t commit_number, const std::string& history = "aa") {
    const CommitQuery query{.model = "m", .history_id = history, .epoch = epoch, .commit_number = commit_number};
    const absl::StatusOr<CommitDecision> answer = coordinator_.QueryCommit(1, query);
    CommitVote vote = MakeVote(epoch, commit_number, {{2, 0.125, 0}});
    vote.history_id = history;
    EXPECT_EQ(coordinator_.Vote(1, vote, kNow).status().code(), answer.status().code()) << "votes hear the same";
    return answer;
  }

  Coordinator coordinator_{Coordinator::Options{
      .nodes = 2,
      .closed = {
          {.model = "m",
           .history_id = "aa",
           .epoch = 5,
           .commit_number = 8,
           .last_decision = ClosedEpoch::Decided{
               .epoch = 5, .commit_number = 8, .decision = {.apply = true, .square_sum = 3, .non_finite_count = 0}}}}}};
};

TEST_F(RestartedCoordinatorTest, TheLastDecisionIsAnsweredAsItWas) {
  ASSERT_OK_AND_ASSIGN(const CommitDecision decision, Ask(5, 8));
  EXPECT_TRUE(decision.apply);
  EXPECT_EQ(decision.square_sum, 3);
}

TEST_F(RestartedCoordinatorTest, TheCommitBehindTheLastDecisionWasNotDecided) {
  EXPECT_THAT(Ask(5, 9), StatusIs(absl::StatusCode::kAborted, HasSubstr("node 0 was restarted")));
  EXPECT_THAT(Ask(6, 9), StatusIs(absl::StatusCode::kAborted)) << "an epoch that node 0 died before";
}

TEST_F(RestartedCoordinatorTest, WhatItKnowsNothingOfStaysInDoubt) {
  const auto in_doubt = StatusIs(absl::StatusCode::kDataLoss, HasSubstr("unknown to node 0"));
  EXPECT_THAT(Ask(5, 9, "bb"), in_doubt) << "another history";
  EXPECT_THAT(Ask(5, 7), in_doubt);
  EXPECT_THAT(Ask(5, 10), in_doubt);
  EXPECT_THAT(Ask(4, 9), in_doubt);
  EXPECT_THAT(coordinator_.QueryCommit(1, {.model = "n", .history_id = "aa", .epoch = 5, .commit_number = 9}),
              in_doubt);
}

TEST_F(RestartedCoordinatorTest, TheNextEpochIsBehindAllBefore) {
  RecordingListener sinks[2];
  ASSERT_OK(coordinator_.Join(0, 2, &sinks[0]));
  ASSERT_OK(coordinator_.Join(1, 1, &sinks[1]));
  EXPECT_OK(coordinator_.Step(0, MakeReport({0, 1}, 8, 8)));
  EXPECT_OK(coordinator_.Step(1, MakeReport({2}, 8, 8)));
  EXPECT_EQ(sinks[1].Next().epoch, 6);
  EXPECT_OK(Ask(5, 8));
}

// A decision known only from a log may be outdated: another node 0 without the log may have followed.
TEST(OldLogTest, AnswersForItsOwnEpochAlone) {
  Coordinator coordinator(Coordinator::Options{
      .nodes = 2,
      .closed = {{.model = "m",
                  .history_id = "aa",
                  .epoch = 5,
                  .commit_number = 8,
                  .last_decision = ClosedEpoch::Decided{.epoch = 5, .commit_number = 8, .decision = {.apply = true}},
                  .may_be_old = true}}});
  const auto ask = [&](int64_t epoch, int64_t commit_number) {
    return coordinator
        .QueryCommit(1, {.model = "m", .history_id = "aa", .epoch = epoch, .commit_number = commit_number})
        .status();
  };
  EXPECT_OK(ask(5, 8));
  EXPECT_THAT(ask(5, 9), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(ask(6, 9), StatusIs(absl::StatusCode::kDataLoss)) << "its decisions may be in no log";
}

TEST(OldLogTest, AJournalOfTheSameHistoryCountsBeforeIt) {
  const ClosedEpoch journal{.model = "m", .history_id = "aa", .epoch = 5, .commit_number = 7};
  const ClosedEpoch log{
      .model = "m",
      .history_id = "aa",
      .epoch = 5,
      .commit_number = 8,
      .last_decision = ClosedEpoch::Decided{.epoch = 5, .commit_number = 8, .decision = {.apply = true}},
      .may_be_old = true};
  const ClosedEpoch other{.model = "m", .history_id = "bb", .epoch = 3, .commit_number = 2};
  Coordinator coordinator(Coordinator::Options{.nodes = 2, .closed = {journal, log, other}});
  EXPECT_THAT(coordinator.QueryCommit(1, {.model = "m", .history_id = "aa", .epoch = 5, .commit_number = 8}),
              StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(coordinator.QueryCommit(1, {.model = "m", .history_id = "bb", .epoch = 3, .commit_number = 3}),
              StatusIs(absl::StatusCode::kAborted))
      << "another history of the model";
}

TEST_F(CoordinatorTest, EpochNumbersGoOnWhenAModelIsDeletedAndCreatedAgain) {
  const int64_t first = StartEpoch();
  EXPECT_OK(coordinator_.Step(0, ModelDeleted{.model = "m"}));
  ExpectEnd(first, absl::StatusCode::kAborted, "deleted on node 0");
  EXPECT_OK(coordinator_.Step(1, ModelDeleted{.model = "m"}));
  EXPECT_THAT(Vote1(first, 1), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_GT(StartEpoch(), first);
  EXPECT_THAT(Vote1(first, 1), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(CoordinatorTest, EpochNumbersAreBehindWhatIsReportedWhileOneRuns) {
  const int64_t first = StartEpoch();
  EXPECT_FALSE(Vote1(first, 1).ok());
  ASSERT_OK(Vote0(first, 1));
  ModelReport report = MakeReport({2});
  report.last_epoch = 9;
  EXPECT_OK(coordinator_.Step(1, report));
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = first, .why = absl::AbortedError("over")}));
  ExpectEnd(first, absl::StatusCode::kAborted, "over");
  EXPECT_OK(coordinator_.Step(0, MakeReport({0, 1}, 1, 1)));
  // A node has heard of no epoch of this coordinator then, but of one of another.
  report = MakeReport({2}, 1, 1);
  report.last_epoch = 9;
  EXPECT_OK(coordinator_.Step(1, report));
  EXPECT_EQ(sinks_[0].Next().epoch, 10);
  EXPECT_OK(Vote1(first, 1)) << "what was decided before is answered still";
}

TEST_F(CoordinatorTest, EpochNumbersThatNoneFollowsAreRefused) {
  for (const int64_t last_epoch : {std::numeric_limits<int64_t>::max(), int64_t{-1}}) {
    ModelReport report = MakeReport({2});
    report.last_epoch = last_epoch;
    EXPECT_OK(coordinator_.Step(1, report));
    const ReceivedMessage message = sinks_[1].Next();
    EXPECT_TRUE(message.refused);
    EXPECT_THAT(message.why,
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("report of m: want a last epoch in [0, ")));
  }
  EXPECT_EQ(StartEpoch(), 1);
}

TEST_F(CoordinatorTest, EpochsBehindTheHighestNumberThatMayBeNamedAreNamedByTheirNodes) {
  constexpr int64_t kHighest = int64_t{1} << 62;
  const auto report = [&](int64_t last_epoch) {
    ModelReport zero = MakeReport({0, 1}), one = MakeReport({2});
    zero.last_epoch = one.last_epoch = last_epoch;
    EXPECT_OK(coordinator_.Step(0, zero));
    EXPECT_OK(coordinator_.Step(1, one));
    return sinks_[0].Next().epoch;
  };
  EXPECT_EQ(report(kHighest), kHighest + 1);
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = kHighest + 1, .why = absl::AbortedError("over")}));
  EXPECT_FALSE(sinks_[0].Next().start);
  EXPECT_EQ(report(kHighest + 1), kHighest + 2);
}

TEST_F(CoordinatorTest, WhatOneNodeSaysHasABound) {
  const int64_t epoch = StartEpoch();
  const std::string value(RendezvousStore::kMostBytes / 2, 'v');
  EXPECT_OK(coordinator_.Put(1, "m", epoch, "a", value));
  EXPECT_THAT(coordinator_.Put(1, "m", epoch, "b", value), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(coordinator_.PutParts(1, "m", epoch, "c", {value, value}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_OK(coordinator_.Put(0, "m", epoch, "b", value)) << "each has its own";
  ModelReport report = MakeReport({});
  for (int i = 0; sinks_[1].empty() && i < 10'000; ++i) {
    report.model = absl::StrCat(i);
    EXPECT_OK(coordinator_.Step(1, report));
  }
  const ReceivedMessage message = sinks_[1].Next();
  EXPECT_TRUE(message.refused);
  EXPECT_THAT(message.why, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("at most 1000 models of node 1")));
}

TEST_F(CoordinatorTest, VotesAfterDifferentCommandsEndTheEpochNamingBoth) {
  const int64_t epoch = StartEpoch();
  VoteAfter(1, epoch, 3, 7);
  EXPECT_TRUE(sinks_[0].empty() && sinks_[1].empty());
  VoteAfter(0, epoch, 3, 8);
  ExpectWanted(0, {});
  ExpectWanted(1, {});
  EXPECT_OK(coordinator_.Step(
      1, CommandReports{
             .model = "m", .epoch = epoch, .commands = {{1, 2, "gather a"}, {2, 2, "gather c"}, {3, 2, "commit 1"}}}));
  EXPECT_TRUE(sinks_[0].empty());
  EXPECT_OK(coordinator_.Step(
      0, CommandReports{
             .model = "m", .epoch = epoch, .commands = {{1, 1, "gather a"}, {2, 0, "gather b"}, {3, 1, "commit 1"}}}));
  ExpectEnd(epoch, absl::StatusCode::kFailedPrecondition, "command 2: rank 2 sent gather c, rank 0 sent gather b");
  EXPECT_THAT(Vote0(epoch, 1), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 0 sent gather b")));
}

TEST_F(CoordinatorTest, VotesAfterMoreCommandsOnOneNodeEndTheEpochToo) {
  const int64_t epoch = StartEpoch();
  VoteAfter(1, epoch, 2, 7);
  VoteAfter(0, epoch, 3, 8);
  EXPECT_OK(coordinator_.Step(
      1, CommandReports{.model = "m", .epoch = epoch, .commands = {{1, 2, "gather a"}, {2, 2, "commit 1"}}}));
  EXPECT_OK(coordinator_.Step(
      0, CommandReports{
             .model = "m", .epoch = epoch, .commands = {{1, 1, "gather a"}, {2, 0, "discard"}, {3, 1, "commit 1"}}}));
  for (RecordingListener& sink : sinks_) EXPECT_EQ(sink.Next().commands_wanted_unless, CommandsThrough());
  ExpectEnd(epoch, absl::StatusCode::kFailedPrecondition, "command 2: rank 2 sent commit 1, rank 0 sent discard");
}

TEST_F(CoordinatorTest, CommandsThatNobodyRemembersEndTheEpochNamingTheNodes) {
  const int64_t epoch = StartEpoch();
  VoteAfter(0, epoch, 3, 7);
  VoteAfter(1, epoch, 3, 8);
  for (RecordingListener& sink : sinks_) EXPECT_EQ(sink.Next().commands_wanted_unless, CommandsThrough());
  EXPECT_OK(coordinator_.Step(0, CommandReports{.model = "m", .epoch = epoch, .commands = {{3, 1, "commit 1"}}}));
  EXPECT_OK(coordinator_.Step(0, CommandReports{.model = "m", .epoch = epoch, .commands = {{3, 1, "commit 2"}}}));
  EXPECT_TRUE(sinks_[0].empty()) << "only its first word counts";
  EXPECT_OK(coordinator_.Step(1, CommandReports{.model = "m", .epoch = epoch, .commands = {{3, 2, "commit 1"}}}));
  ExpectEnd(epoch, absl::StatusCode::kFailedPrecondition, "different ones at node 0, node 1, and none of them is");
}

TEST_F(CoordinatorTest, NothingIsDecidedAfterDifferentCommands) {
  const int64_t epoch = StartEpoch();
  VoteAfter(0, epoch, 3, 7);
  VoteAfter(1, epoch, 3, 8);
  VoteAfter(1, epoch, 3, 7);  // its first word stays
  for (RecordingListener& sink : sinks_) EXPECT_EQ(sink.Next().commands_wanted_unless, CommandsThrough());
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = epoch, .why = absl::DeadlineExceededError("late")}));
  ExpectEnd(epoch, absl::StatusCode::kDeadlineExceeded, "late");
  EXPECT_THAT(Vote1(epoch, 1), StatusIs(absl::StatusCode::kAborted));
  // The next epoch begins anew.
  const int64_t next = StartEpoch();
  VoteAfter(0, next, 1, 9);
  CommitVote vote = MakeVote(next, 1, {{2, 0.125, 0}});
  vote.commands = {.number = 1, .hash = 9};
  EXPECT_OK(coordinator_.Vote(1, vote, kNow));
}

// It may wait for what a node that has voted does not send.
TEST_F(CoordinatorTest, ANodeThatIsLateIsAskedWhenAVoteIsRepeated) {
  const int64_t epoch = StartEpoch();
  VoteAfter(0, epoch, 3, 7);
  EXPECT_TRUE(sinks_[1].empty());
  VoteAfter(0, epoch, 3, 7);
  ExpectWanted(1, {.number = 3, .hash = 7});
  EXPECT_TRUE(sinks_[0].empty());
  EXPECT_OK(coordinator_.Step(
      1, CommandReports{
             .model = "m", .epoch = epoch, .commands = {{1, 2, "gather a"}, {2, 2, "push a"}, {3, 2, "push b"}}}));
  ExpectWanted(0, {});
  EXPECT_OK(coordinator_.Step(
      0, CommandReports{
             .model = "m", .epoch = epoch, .commands = {{1, 1, "gather a"}, {2, 0, "push a"}, {3, 1, "commit 1"}}}));
  ExpectEnd(epoch, absl::StatusCode::kFailedPrecondition, "command 3: rank 2 sent push b, rank 1 sent commit 1");
}

TEST_F(CoordinatorTest, CommandsThatNobodyHasAskedForAreIgnored) {
  const int64_t epoch = StartEpoch();
  EXPECT_OK(coordinator_.Step(0, CommandReports{.model = "m", .epoch = epoch, .commands = {{1, 1, "gather a"}}}));
  EXPECT_OK(coordinator_.Step(1, CommandReports{.model = "m", .epoch = epoch, .commands = {{1, 2, "gather b"}}}));
  EXPECT_TRUE(sinks_[0].empty() && sinks_[1].empty());
}

TEST_F(CoordinatorTest, ADepartureTellsAllNodesTheLastCommand) {
  const int64_t epoch = StartEpoch();
  EXPECT_OK(coordinator_.Step(
      0, RankDetached{
             .model = "m", .epoch = epoch, .rank = 2, .command_count = 4, .why = absl::AbortedError("rank 2 left")}));
  EXPECT_TRUE(sinks_[0].empty()) << "it is a rank of node 1";
  EXPECT_OK(coordinator_.Step(
      1, RankDetached{
             .model = "m", .epoch = epoch, .rank = 2, .command_count = 4, .why = absl::AbortedError("rank 2 left")}));
  for (RecordingListener& sink : sinks_) EXPECT_EQ(sink.Next().last_command, 4);
  EXPECT_OK(coordinator_.Step(
      0, RankDetached{
             .model = "m", .epoch = epoch, .rank = 0, .command_count = 6, .why = absl::AbortedError("rank 0 left")}));
  EXPECT_TRUE(sinks_[0].empty()) << "it is an earlier one that counts";
  EXPECT_OK(coordinator_.Step(1, CommandsCarriedOut{.model = "m", .epoch = epoch, .command = 4, .more = false}));
  EXPECT_OK(coordinator_.Step(0, CommandsCarriedOut{.model = "m", .epoch = epoch + 1, .command = 4, .more = true}));
  EXPECT_TRUE(sinks_[0].empty());
  EXPECT_OK(coordinator_.Step(0, CommandsCarriedOut{.model = "m", .epoch = epoch, .command = 4, .more = true}));
  ExpectEnd(epoch, absl::StatusCode::kAborted, "rank 2 left");
  StartEpoch();
  EXPECT_OK(coordinator_.Step(1, CommandsCarriedOut{.model = "m", .epoch = epoch + 1, .command = 4, .more = true}));
  EXPECT_TRUE(sinks_[1].empty()) << "departures end with their epoch";
}

TEST_F(CoordinatorTest, TheLastRankThatDetachesEndsTheEpoch) {
  const int64_t epoch = StartEpoch();
  for (const int rank : {2, 0, 1}) {
    EXPECT_OK(coordinator_.Step(
        rank == 2 ? 1 : 0,
        RankDetached{
            .model = "m", .epoch = epoch, .rank = rank, .command_count = 4, .why = absl::AbortedError("a rank left")}));
  }
  for (RecordingListener& sink : sinks_) EXPECT_EQ(sink.Next().last_command, 4);
  ExpectEnd(epoch, absl::StatusCode::kAborted, "a rank left");
}

TEST_F(CoordinatorTest, ValuesLiveAsLongAsTheEpoch) {
  EXPECT_THAT(coordinator_.Put(0, "m", 1, "k", "v"), StatusIs(absl::StatusCode::kAborted));
  const int64_t epoch = StartEpoch();
  EXPECT_THAT(coordinator_.Get(0, "m", epoch, "k", absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("get k of m")));
  auto waiting = std::async(std::launch::async, [&] { return coordinator_.Get(0, "m", epoch, "k", absl::Minutes(1)); });
  EXPECT_OK(coordinator_.Put(0, "m", epoch, "k", "v"));
  EXPECT_THAT(waiting.get(), IsOkAndHolds("v"));
  waiting = std::async(std::launch::async, [&] { return coordinator_.Get(0, "m", epoch, "never", absl::Minutes(1)); });
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = epoch, .why = absl::AbortedError("over")}));
  EXPECT_THAT(waiting.get(), StatusIs(absl::StatusCode::kAborted));
  const int64_t next = (sinks_[0].Next(), sinks_[1].Next(), StartEpoch());
  EXPECT_THAT(coordinator_.Get(0, "m", next, "k", absl::ZeroDuration()), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(CoordinatorTest, EveryNodeReadsThePartsThatAllHaveForIt) {
  EXPECT_THAT(coordinator_.PutParts(0, "m", 1, "k", {"", ""}), StatusIs(absl::StatusCode::kAborted));
  const int64_t epoch = StartEpoch();
  const auto get = [&](int node, absl::Duration timeout) {
    return coordinator_.GetParts(node, "m", epoch, "k", timeout);
  };
  EXPECT_OK(coordinator_.PutParts(0, "m", epoch, "k", {"0 for 0", "0 for 1"}));
  EXPECT_OK(coordinator_.PutParts(0, "m", epoch, "k", {"again", "again"}));
  EXPECT_THAT(get(0, absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("got no part of node 1 (rank 2)")));
  auto waiting = std::async(std::launch::async, [&] { return get(1, absl::Minutes(1)); });
  EXPECT_OK(coordinator_.PutParts(1, "m", epoch, "k", {"1 for 0", "1 for 1"}));
  EXPECT_THAT(waiting.get(), IsOkAndHolds(ElementsAre("0 for 1", "1 for 1")));
  EXPECT_THAT(get(0, absl::ZeroDuration()), IsOkAndHolds(ElementsAre("0 for 0", "1 for 0")));
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = epoch, .why = absl::AbortedError("over")}));
  EXPECT_THAT(get(0, absl::ZeroDuration()), StatusIs(absl::StatusCode::kAborted));
}

TEST_F(CoordinatorTest, PartsThatNobodyReadsAnyMoreAreForgotten) {
  const int64_t epoch = StartEpoch();
  EXPECT_OK(coordinator_.PutParts(0, "m", epoch, "k", {"", ""}));
  EXPECT_OK(coordinator_.PutParts(1, "m", epoch, "k", {"", ""}));
  EXPECT_FALSE(Vote1(epoch, 1).ok());
  EXPECT_OK(coordinator_.GetParts(1, "m", epoch, "k", absl::ZeroDuration())) << "nothing is decided";
  EXPECT_OK(Vote0(epoch, 1));
  EXPECT_THAT(coordinator_.GetParts(1, "m", epoch, "k", absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(CoordinatorTest, PartsOfNoNodeOrNotForAllAreRefused) {
  const int64_t epoch = StartEpoch();
  for (const int node : {-1, 2}) {
    EXPECT_THAT(coordinator_.PutParts(node, "m", epoch, "k", {"", ""}), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(coordinator_.GetParts(node, "m", epoch, "k", absl::ZeroDuration()),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(coordinator_.PutParts(1, "m", epoch, "k", {""}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a part for each of 2 nodes")));
}

TEST_F(CoordinatorTest, WhoHasGivenUpIsNotCalledWithParts) {
  const int64_t epoch = StartEpoch();
  int called = 0;
  const auto get = [&] { return coordinator_.GetParts(1, "m", epoch, "k", [&](const auto&) { ++called; }); };
  EXPECT_TRUE(coordinator_.GiveUp(get()));
  const Coordinator::Wait second = get();
  EXPECT_OK(coordinator_.PutParts(0, "m", epoch, "k", {"", ""}));
  EXPECT_OK(coordinator_.PutParts(1, "m", epoch, "k", {"", ""}));
  EXPECT_FALSE(coordinator_.GiveUp(second));
  EXPECT_EQ(called, 1);
}

TEST_F(CoordinatorTest, WhoWaitsForPartsWhenACommitIsDecidedIsAnswered) {
  const int64_t epoch = StartEpoch();
  std::vector<absl::StatusOr<Coordinator::Parts>> answers;
  EXPECT_OK(coordinator_.PutParts(0, "m", epoch, "k", {"", ""}));
  coordinator_.GetParts(1, "m", epoch, "k", [&](const auto& parts) { answers.push_back(parts); });
  EXPECT_THAT(Vote1(epoch, 1), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(answers.empty());
  EXPECT_OK(Vote0(epoch, 1));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_THAT(answers[0], StatusIs(absl::StatusCode::kAborted, HasSubstr("commit 1 is decided")));
}

// A world of three nodes.
TEST(WorldMessageTest, DeviceCountsAreToldOnceWhenAllAreHere) {
  Coordinator coordinator(3);
  RecordingListener sinks[3];
  ASSERT_OK(coordinator.Join(2, 4, &sinks[2]));
  ASSERT_OK(coordinator.Join(0, 1, &sinks[0]));
  EXPECT_THAT(sinks[2].welcomes(), ElementsAre(3));
  EXPECT_THAT(sinks[2].worlds(), testing::IsEmpty());
  EXPECT_OK(coordinator.Step(2, WorldQuestion()));
  EXPECT_THAT(sinks[2].worlds(), ElementsAre(ElementsAre(1, 0, 4)));
  coordinator.Leave(0);
  ASSERT_OK(coordinator.Join(0, 2, &sinks[0]));
  ASSERT_OK(coordinator.Join(1, 3, &sinks[1]));
  EXPECT_THAT(sinks[0].worlds(), ElementsAre(ElementsAre(2, 3, 4)));
  EXPECT_THAT(sinks[1].worlds(), ElementsAre(ElementsAre(2, 3, 4)));
  EXPECT_EQ(sinks[2].worlds().size(), 2u);
  // Only a node that comes back is told.
  coordinator.Leave(1);
  ASSERT_OK(coordinator.Join(1, 3, &sinks[1]));
  EXPECT_EQ(sinks[0].worlds().size(), 1u);
  EXPECT_THAT(sinks[1].worlds(), ElementsAre(ElementsAre(2, 3, 4), ElementsAre(2, 3, 4)));
}

TEST_F(CoordinatorTest, StopEndsWhatWaits) {
  const int64_t epoch = StartEpoch();
  auto vote = std::async(std::launch::async, [&] { return Vote1(epoch, 1, absl::InfiniteDuration()); });
  auto value = std::async(std::launch::async, [&] { return coordinator_.Get(0, "m", epoch, "k", absl::Minutes(1)); });
  auto parts =
      std::async(std::launch::async, [&] { return coordinator_.GetParts(0, "m", epoch, "k", absl::Minutes(1)); });
  coordinator_.Stop();
  coordinator_.Stop();
  EXPECT_THAT(vote.get(), StatusIs(absl::StatusCode::kAborted, HasSubstr("before the decision: cluster: stopped")));
  EXPECT_THAT(value.get(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(parts.get(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(coordinator_.AwaitWorld(absl::ZeroDuration()), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(CoordinatorTest, WhatWasDecidedBeforeAStopIsStillAnswered) {
  const int64_t epoch = StartEpoch();
  EXPECT_FALSE(Vote1(epoch, 1).ok());
  ASSERT_OK_AND_ASSIGN(const CommitDecision zero, Vote0(epoch, 1));
  coordinator_.Stop();
  ASSERT_OK_AND_ASSIGN(const CommitDecision one, Vote1(epoch, 1));
  EXPECT_EQ(one.square_sum, zero.square_sum);
  EXPECT_THAT(Vote1(epoch, 2), StatusIs(absl::StatusCode::kAborted)) << "nothing is decided any more";
}

TEST(LocalClusterTest, RunsEpochsAndCommitsOfOneDaemon) {
  RecordingListener listener;
  const std::unique_ptr<Cluster> cluster = *MakeLocalCluster(2);
  EXPECT_THAT(cluster->device_counts(), ElementsAre(2));
  EXPECT_OK(cluster->AwaitWorld(absl::ZeroDuration()));
  // Messages wait for the listener.
  cluster->Send(MakeReport({0, 1})).IgnoreError();
  cluster->SetListener(&listener);
  EXPECT_EQ(listener.Next().epoch, 1);
  cluster->Send(CommandReports{.model = "m", .epoch = 1, .commands = {{1, 0, "gather a"}}}).IgnoreError();
  ASSERT_OK_AND_ASSIGN(const CommitDecision decision, cluster->Vote(MakeVote(1, 1, {{0, 2, 0}, {1, 3, 0}})));
  EXPECT_TRUE(decision.apply);
  EXPECT_EQ(decision.square_sum, 5);
  const auto rendezvous = cluster->MakeRendezvous("m", 1);
  EXPECT_OK(rendezvous->Put("k", "v"));
  EXPECT_THAT(rendezvous->Get(0, "k", absl::ZeroDuration()), IsOkAndHolds("v"));
  EXPECT_OK(rendezvous->PutParts("p", {"own"}));
  EXPECT_THAT(rendezvous->GetParts("p", absl::ZeroDuration()), IsOkAndHolds(ElementsAre("own")));
  cluster->Send(EndEpoch{.model = "m", .epoch = 1, .why = absl::AbortedError("rank 0 left")}).IgnoreError();
  EXPECT_THAT(listener.Next().why, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 0 left")));
  cluster->SetListener(nullptr);
  cluster->Stop();
  EXPECT_THAT(cluster->Vote(MakeVote(1, 2, {{0, 2, 0}, {1, 3, 0}})), StatusIs(absl::StatusCode::kAborted));
}

// A listener that calls the cluster, as a daemon does.
class AnsweringListener final : public EpochListener {
 public:
  explicit AnsweringListener(Cluster* cluster) : cluster_(cluster) {}
  void Hear(const ToNode& message) override {
    if (const auto* const start = std::get_if<EpochStart>(&message); start != nullptr) {
      const EndEpoch end{.model = start->model, .epoch = start->epoch, .why = absl::AbortedError("not now")};
      cluster_->Send(end).IgnoreError();
    }
    if (const auto* const ended = std::get_if<EpochEnded>(&message); ended != nullptr) ended_.set_value(ended->epoch);
  }
  int64_t Ended() { return ended_.get_future().get(); }

 private:
  Cluster* const cluster_;
  std::promise<int64_t> ended_;
};

TEST(LocalClusterTest, TheListenerMayCallTheCluster) {
  const std::unique_ptr<Cluster> cluster = *MakeLocalCluster(1);
  AnsweringListener listener(cluster.get());
  cluster->SetListener(&listener);
  cluster->Send(MakeReport({0})).IgnoreError();
  EXPECT_EQ(listener.Ended(), 1);
  cluster->SetListener(nullptr);
}

}  // namespace
}  // namespace paramshard::server
