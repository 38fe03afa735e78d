// Tests of messages about restores: their receivers, and their encoding on the wire.
#include "server/terms/restore_message.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/world/cluster_messages.h"
#include "server/world/coordinator.h"
#include "server/world/coordinator_cluster.h"
#include "server/world/remote_cluster.h"
#include "tests/server/world/recording_listener.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RestoreOrder Order() {
  return {.id = absl::MakeUint128(7, 8),
          .folder = "step-000000000012-0123abcd",
          .save_id = absl::MakeUint128(1, 2),
          .convert_moments = true,
          .spec_fingerprint = 3,
          .creates = true,
          .timeout = absl::Seconds(90),
          .rollback_why = "node 1 has lost its part",
          .was_asked_for = true};
}
// An order that was asked for, not a rollback.
RestoreOrder AskedOrder() {
  RestoreOrder order = Order();
  order.rollback_why.clear();
  return order;
}

class RestoreOrderTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(coordinator_.Join(0, 1, &sinks_[0]));
    ASSERT_OK(coordinator_.Join(1, 1, &sinks_[1]));
  }
  absl::Status Say(int node, auto what) { return coordinator_.Step(node, RestoreMessage{.model = "m", .what = what}); }

  RecordingListener sinks_[2];
  Coordinator coordinator_{2};
};

TEST_F(RestoreOrderTest, OthersHearWhatNodeZeroSays) {
  ASSERT_OK(Say(0, AskedOrder()));
  ASSERT_OK(Say(0, RestoreGo{.id = 9}));
  ASSERT_OK(Say(0, RestoreEnd{.id = 9, .status = absl::DataLossError("x")}));
  ASSERT_OK(Say(0, RestoreAnswer{.id = 5}));
  EXPECT_EQ(std::get<RestoreOrder>(sinks_[1].Next().restore->what), AskedOrder());
  EXPECT_EQ(std::get<RestoreGo>(sinks_[1].Next().restore->what).id, 9);
  EXPECT_EQ(std::get<RestoreEnd>(sinks_[1].Next().restore->what).status, absl::DataLossError("x"));
  EXPECT_EQ(std::get<RestoreAnswer>(sinks_[1].Next().restore->what).id, 5);
  EXPECT_TRUE(sinks_[0].empty());
}

TEST_F(RestoreOrderTest, NodeZeroHearsProgressSumsReportsAndRequestsOfOthersAndNothingElse) {
  ASSERT_OK(Say(1, RestoreSums{.id = 9, .node = 77, .tensors = {{.key = "k", .sum = 5, .rows = 6}}}));
  ASSERT_OK(Say(1, RestoreReport{.id = 9, .node = 77, .phase = RestorePhase::kWritten}));
  ASSERT_OK(Say(1, RestoreRequest{.id = 9, .node = 77}));
  ASSERT_OK(Say(1, RestorePartProgress{.id = 9, .node = 77}));
  EXPECT_EQ(std::get<RestoreSums>(sinks_[0].Next().restore->what).node, 1) << "whose stream it came by";
  EXPECT_EQ(std::get<RestoreReport>(sinks_[0].Next().restore->what).node, 1);
  EXPECT_EQ(std::get<RestoreRequest>(sinks_[0].Next().restore->what).node, 1);
  EXPECT_EQ(std::get<RestorePartProgress>(sinks_[0].Next().restore->what).node, 1);
  ASSERT_OK(Say(1, AskedOrder()));
  ASSERT_OK(Say(1, RestoreGo{}));
  ASSERT_OK(Say(1, RestoreEnd{}));
  ASSERT_OK(Say(1, RestoreAnswer{}));
  EXPECT_TRUE(sinks_[0].empty());
  EXPECT_TRUE(sinks_[1].empty());
}

TEST_F(RestoreOrderTest, AnOrderNeedsEveryNode) {
  coordinator_.Leave(1);
  EXPECT_THAT(Say(0, AskedOrder()), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 1 (rank 1) is not here")));
}

TEST_F(RestoreOrderTest, ALostNodeHasReportedSo) {
  ASSERT_OK(Say(0, AskedOrder()));
  coordinator_.Leave(1);
  const RestoreReport report = std::get<RestoreReport>(sinks_[0].Next().restore->what);
  EXPECT_EQ(report.id, AskedOrder().id);
  EXPECT_EQ(report.node, 1);
  EXPECT_THAT(report.status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("its daemon was lost")));
}

TEST_F(RestoreOrderTest, ALostNodeSaysNothingOfARestoreThatWasGivenUp) {
  ASSERT_OK(Say(0, AskedOrder()));
  ASSERT_OK(Say(0, RestoreEnd{.id = AskedOrder().id, .status = absl::AbortedError("a damaged chunk")}));
  coordinator_.Leave(1);
  EXPECT_TRUE(sinks_[0].empty());
}

TEST_F(RestoreOrderTest, NodeZeroHearsThatAnotherNodeIsLost) {
  coordinator_.Leave(1);
  EXPECT_THAT(sinks_[0].lost_followers(), ElementsAre(1));
}

// It may be lost before it has said that it is through.
TEST_F(RestoreOrderTest, ANodeThatIsLostBehindAGoodEndHasReportedSo) {
  ASSERT_OK(Say(0, AskedOrder()));
  ASSERT_OK(Say(0, RestoreEnd{.id = AskedOrder().id}));
  coordinator_.Leave(1);
  EXPECT_EQ(std::get<RestoreReport>(sinks_[0].Next().restore->what).id, AskedOrder().id);
}

// --- All roll back to a saved step ---

class RollbackNeedTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int node = 0; node < 3; ++node) ASSERT_OK(coordinator_.Join(node, 1, &sinks_[node]));
  }

  static ModelReport Trained(int node, int64_t commit_number = 7, std::vector<int> ranks = {}) {
    ModelReport report = Fresh(node, std::move(ranks));
    report.commit_number = report.version = commit_number;
    report.untouched = report.fresh = false;
    report.history_id = "aa";
    return report;
  }
  // With the node's trainer.
  static ModelReport Fresh(int node, std::vector<int> ranks = {}) {
    if (ranks.empty()) ranks = {node};
    return {.model = "m",
            .spec_fingerprint = 9,
            .lineage = "spec",
            .history_id = absl::StrCat("drawn by ", node),
            .untouched = true,
            .fresh = true,
            .shard_size = 3,
            .attached_ranks = std::move(ranks)};
  }
  static ModelReport Lost() {
    ModelReport report;
    report.model = "m";
    report.lost = absl::DataLossError("its journal is damaged");
    return report;
  }
  void Report(int node, const ModelReport& report) { EXPECT_OK(coordinator_.Step(node, report)); }
  void EndRollback(const absl::Status& status) {
    ASSERT_OK(coordinator_.Step(0, RestoreMessage{.model = "m", .what = RollbackEnd{.status = status}}));
  }
  void ExpectNeed(absl::StatusCode code, const std::string& text) {
    const ReceivedMessage message = sinks_[0].Next();
    ASSERT_TRUE(message.restore.has_value());
    ASSERT_TRUE(std::holds_alternative<RollbackNeed>(message.restore->what));
    EXPECT_THAT(std::get<RollbackNeed>(message.restore->what).why, StatusIs(code, HasSubstr(text)));
  }
  void ExpectNoMessage() {
    for (RecordingListener& sink : sinks_) EXPECT_TRUE(sink.empty());
  }

  RecordingListener sinks_[3];
  Coordinator coordinator_{Coordinator::Options{.nodes = 3, .terms = {.save_dir = "/saves"}}};
};

TEST_F(RollbackNeedTest, ANodeWithInitialValuesBesideTrainedOnesIsOneThatHasLostItsPart) {
  Report(0, Trained(0));
  Report(1, Fresh(1));
  ExpectNoMessage();
  Report(2, Trained(2));
  ExpectNeed(absl::StatusCode::kFailedPrecondition,
             "version 7 (commit 7) of history aa on node 0 (rank 0) and node 2 (rank 2), initial values on node 1");
  Report(1, Fresh(1));
  ExpectNoMessage();
}

TEST_F(RollbackNeedTest, NodeZeroMayBeTheOne) {
  Report(0, Fresh(0));
  Report(1, Trained(1));
  Report(2, Trained(2));
  ExpectNeed(absl::StatusCode::kFailedPrecondition, "initial values on node 0");
}

TEST_F(RollbackNeedTest, NodesThatHaveTrainedDifferentlyAreAPersonsToSettle) {
  Report(0, Trained(0, 7));
  Report(1, Fresh(1));
  Report(2, Trained(2, 8));
  for (RecordingListener& sink : sinks_) {
    EXPECT_THAT(sink.Next().why, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("one state on all nodes")));
  }
}

TEST_F(RollbackNeedTest, AllThatAreFreshStartAnEpoch) {
  for (int node = 0; node < 3; ++node) Report(node, Fresh(node));
  EXPECT_TRUE(sinks_[0].Next().start);
}

TEST_F(RollbackNeedTest, ALostPartIsNoNeedBeforeATrainerWaits) {
  Report(1, Lost());
  ExpectNoMessage();
  Report(0, Trained(0));
  ExpectNeed(absl::StatusCode::kDataLoss, "got none on node 1 (rank 1): its journal is damaged");
}

TEST_F(RollbackNeedTest, EveryNodeIsToBeHereBefore) {
  coordinator_.Leave(2);
  Report(1, Lost());
  Report(0, Trained(0));
  ExpectNoMessage();
  RestoreOrder order = Order();
  EXPECT_THAT(coordinator_.Step(0, RestoreMessage{.model = "m", .what = order}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 2 (rank 2) is not here")));
  ASSERT_OK(coordinator_.Join(2, 1, &sinks_[2]));
  ExpectNeed(absl::StatusCode::kDataLoss, "got none on node 1");
}

TEST_F(RollbackNeedTest, NoOrderTakesAllBackWhereEveryNodeHasAState) {
  for (int node = 0; node < 3; ++node) Report(node, Trained(node));
  EXPECT_TRUE(sinks_[0].Next().start);
  EXPECT_THAT(coordinator_.Step(0, RestoreMessage{.model = "m", .what = Order()}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("every node has one")));
  EXPECT_OK(coordinator_.Step(0, RestoreMessage{.model = "m", .what = AskedOrder()}));
}

TEST_F(RollbackNeedTest, TrainersWaitForWhatComesOfIt) {
  Report(1, Lost());
  Report(0, Trained(0));
  ExpectNeed(absl::StatusCode::kDataLoss, "");
  EndRollback(absl::DataLossError("there is no checkpoint"));
  for (RecordingListener& sink : sinks_) {
    const ReceivedMessage message = sink.Next();
    EXPECT_TRUE(message.refused);
    EXPECT_EQ(message.why, absl::DataLossError("there is no checkpoint"));
  }
  // The next nodes ask again.
  Report(0, Trained(0));
  ExpectNeed(absl::StatusCode::kDataLoss, "");
  for (int node = 0; node < 3; ++node) Report(node, Trained(node, 5));
  ExpectNoMessage();
  EndRollback(absl::OkStatus());
  for (RecordingListener& sink : sinks_) EXPECT_TRUE(sink.Next().start);
  EndRollback(absl::DataLossError("said late"));
  ExpectNoMessage();
}

TEST(RestoreMessageTest, MessagesComeBackAsTheyWereSent) {
  const auto round_trip = [](auto what) {
    const ToNode message = RestoreMessage{.model = "m", .what = what};
    return std::get<decltype(what)>(std::get<RestoreMessage>(*FromProto(ToProto(message))).what);
  };
  EXPECT_EQ(round_trip(Order()), Order());
  EXPECT_EQ(round_trip(RestoreGo{.id = absl::MakeUint128(1, 2)}).id, absl::MakeUint128(1, 2));
  const RestoreSums sums{.id = 4, .tensors = {{.key = "a", .sum = absl::MakeUint128(3, 4), .rows = 5}, {.key = "b"}}};
  EXPECT_EQ(round_trip(sums).id, 4);
  EXPECT_EQ(round_trip(sums).tensors, sums.tensors);
  for (const RestorePhase phase : {RestorePhase::kReady, RestorePhase::kWritten, RestorePhase::kDone}) {
    EXPECT_EQ(round_trip(RestoreReport{.phase = phase}).phase, phase);
    EXPECT_OK(round_trip(RestoreReport{.phase = phase}).status);
  }
  EXPECT_EQ(round_trip(RestoreReport{.status = absl::DataLossError("x")}).status, absl::DataLossError("x"));
  EXPECT_EQ(round_trip(RestoreEnd{.status = absl::AbortedError("x")}).status, absl::AbortedError("x"));
  EXPECT_OK(round_trip(RestoreEnd{.id = 1}).status);
  EXPECT_EQ(round_trip(RestoreRequest{.id = 6}).id, 6);
  EXPECT_FALSE(round_trip(RestoreRequest{.id = 6}).withdrawn);
  EXPECT_TRUE(round_trip(RestoreRequest{.id = 6, .withdrawn = true}).withdrawn);
  const auto progress = round_trip(RestorePartProgress{.id = 6, .done_bytes = 7, .all_bytes = 8});
  EXPECT_EQ(progress.id, 6);
  EXPECT_EQ(progress.done_bytes, 7);
  EXPECT_EQ(progress.all_bytes, 8);
  EXPECT_EQ(round_trip(RestoreAnswer{.id = 6, .status = absl::AbortedError("x")}).status, absl::AbortedError("x"));
  EXPECT_FALSE(round_trip(RestoreAnswer{.id = 6}).heals);
  EXPECT_TRUE(round_trip(RestoreAnswer{.id = 6, .heals = true}).heals);
}

TEST(RestoreMessageTest, MessagesThatSayNothingOrWhatIsUnknownDoNoHarm) {
  v1::JoinResponse response;
  v1::RestoreMessage& message = *response.mutable_restore();
  EXPECT_FALSE(FromProto(response).has_value());
  message.mutable_report();
  EXPECT_FALSE(FromProto(response).has_value());
  message.mutable_report()->set_phase(static_cast<v1::RestorePhase>(99));
  EXPECT_FALSE(FromProto(response).has_value());
  message.mutable_end()->mutable_error()->set_code(0);
  const auto received = std::get<RestoreMessage>(*FromProto(response));
  EXPECT_FALSE(std::get<RestoreEnd>(received.what).status.ok()) << "an error is one, whatever its code";
}

// A world of two over gRPC.
TEST(RestoreMessageTest, OrdersAndReportsTravelBetweenDaemons) {
  ASSERT_OK_AND_ASSIGN(CoordinatorNode zero, MakeCoordinatorCluster({.nodes = 2, .devices = 1}));
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(zero.service.get());
  const auto server = builder.BuildAndStart();
  ASSERT_OK_AND_ASSIGN(const auto one, MakeRemoteCluster({.coordinator_address = absl::StrCat("127.0.0.1:", port)}));
  RecordingListener of_zero, of_one;
  zero.cluster->SetListener(&of_zero);
  one->SetListener(&of_one);
  ASSERT_OK(zero.cluster->Send(RestoreMessage{.model = "m", .what = AskedOrder()}));
  EXPECT_EQ(std::get<RestoreOrder>(of_one.Next().restore->what), AskedOrder());
  ASSERT_OK(one->Send(RestoreMessage{.model = "m", .what = RestoreReport{.id = 9}}));
  EXPECT_EQ(std::get<RestoreReport>(of_zero.Next().restore->what).node, 1);
  one->SetListener(nullptr);
  zero.cluster->SetListener(nullptr);
  one->Stop();
  zero.cluster->Stop();
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace
}  // namespace paramshard::server
