// Tests of messages about saves: their receivers, the decisions that carry them, and their encoding on the wire.
#include "server/terms/save_message.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

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

using ::testing::AllOf;
using ::testing::HasSubstr;

SaveOrder OrderOf(int64_t step) {
  return {.id = absl::MakeUint128(7, static_cast<uint64_t>(step)),
          .step = step,
          .version = step,
          .lineage = "a",
          .history_id = "b",
          .spec_fingerprint = 3,
          .reason = SaveReason::kDrain,
          .timeout = absl::Seconds(90)};
}

// Node 0 serves rank 0, node 1 rank 1.
class SaveOrderTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(coordinator_.Join(0, 1, &sinks_[0]));
    ASSERT_OK(coordinator_.Join(1, 1, &sinks_[1]));
  }

  int64_t StartEpoch(int64_t commit_number) {
    EXPECT_OK(coordinator_.Step(0, MakeReport({0}, commit_number, commit_number, 1, 2)));
    EXPECT_OK(coordinator_.Step(1, MakeReport({1}, commit_number, commit_number, 1, 2)));
    for (RecordingListener& sink : sinks_) EXPECT_TRUE(sink.Next().start);
    return 1;
  }
  absl::StatusOr<CommitDecision> Vote(int node, int64_t epoch, int64_t commit_number) {
    return coordinator_.Vote(node, MakeVote(epoch, commit_number, {{node, 1.0, 0}}), absl::ZeroDuration());
  }
  // The decision, as both nodes get it.
  std::pair<CommitDecision, CommitDecision> Decide(int64_t epoch, int64_t commit_number) {
    EXPECT_EQ(Vote(0, epoch, commit_number).status().code(), absl::StatusCode::kDeadlineExceeded);
    auto one = Vote(1, epoch, commit_number);
    auto zero = Vote(0, epoch, commit_number);
    EXPECT_OK(one);
    EXPECT_OK(zero);
    return {*zero, *one};
  }
  absl::Status Say(int node, auto what) { return coordinator_.Step(node, SaveMessage{.model = "m", .what = what}); }

  RecordingListener sinks_[2];
  Coordinator coordinator_{2};
};

TEST_F(SaveOrderTest, OthersHearWhatNodeZeroSays) {
  ASSERT_OK(Say(0, OrderOf(4)));
  ASSERT_OK(Say(0, SavePermission{.id = 9}));
  ASSERT_OK(Say(0, SaveEnd{.id = 9, .state = SaveState::kPublished, .path = "p"}));
  EXPECT_EQ(std::get<SaveOrder>(sinks_[1].Next().save->what), OrderOf(4));
  EXPECT_EQ(std::get<SavePermission>(sinks_[1].Next().save->what).id, 9);
  EXPECT_EQ(std::get<SaveEnd>(sinks_[1].Next().save->what).path, "p");
  EXPECT_TRUE(sinks_[0].empty());
}

TEST_F(SaveOrderTest, NodeZeroHearsPartsAndRequestsOfOthersAndNothingElse) {
  ASSERT_OK(Say(1, SavePart{.id = 9, .node = 77, .hash = 5}));
  ASSERT_OK(Say(1, SaveRequest()));
  const SavePart part = std::get<SavePart>(sinks_[0].Next().save->what);
  EXPECT_EQ(part.node, 1) << "whose stream it came by, whatever it says";
  EXPECT_EQ(part.hash, 5);
  EXPECT_TRUE(std::holds_alternative<SaveRequest>(sinks_[0].Next().save->what));
  ASSERT_OK(Say(1, OrderOf(0)));
  ASSERT_OK(Say(1, SavePermission{}));
  ASSERT_OK(Say(1, SaveEnd{}));
  EXPECT_TRUE(sinks_[0].empty());
  EXPECT_TRUE(sinks_[1].empty());
}

TEST_F(SaveOrderTest, TheDecisionAboutTheNextCommitCarriesTheOrder) {
  const int64_t epoch = StartEpoch(4);
  ASSERT_OK(Say(0, OrderOf(4)));
  const auto [zero, one] = Decide(epoch, 5);
  EXPECT_EQ(zero.save, OrderOf(4));
  EXPECT_EQ(one.save, OrderOf(4));
  EXPECT_EQ(Decide(epoch, 6).second.save, std::nullopt);
}

TEST_F(SaveOrderTest, ADecisionAfterTheEndCarriesNothing) {
  const int64_t epoch = StartEpoch(4);
  ASSERT_OK(Say(0, OrderOf(4)));
  ASSERT_OK(Say(0, SaveEnd{.id = OrderOf(4).id}));
  EXPECT_EQ(Decide(epoch, 5).second.save, std::nullopt);
}

TEST_F(SaveOrderTest, AnOrderBehindADecidedCommitIsAborted) {
  const int64_t epoch = StartEpoch(4);
  Decide(epoch, 5);
  EXPECT_THAT(Say(0, OrderOf(4)), StatusIs(absl::StatusCode::kAborted, HasSubstr("got 5")));
  EXPECT_TRUE(sinks_[1].empty());
  EXPECT_OK(Say(0, OrderOf(5)));
}

TEST_F(SaveOrderTest, AnOrderNeedsEveryNode) {
  coordinator_.Leave(1);
  EXPECT_THAT(Say(0, OrderOf(0)), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 1 (rank 1) is not here")));
}

TEST_F(SaveOrderTest, ALostNodeHasAnsweredTheOrder) {
  ASSERT_OK(Say(0, OrderOf(4)));
  coordinator_.Leave(1);
  const SavePart part = std::get<SavePart>(sinks_[0].Next().save->what);
  EXPECT_EQ(part.id, OrderOf(4).id);
  EXPECT_EQ(part.node, 1);
  EXPECT_THAT(part.status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("its daemon was lost")));
}

TEST_F(SaveOrderTest, ALostNodeSaysNothingOfASaveThatIsOver) {
  ASSERT_OK(Say(0, OrderOf(4)));
  ASSERT_OK(Say(0, SaveEnd{.id = OrderOf(4).id}));
  coordinator_.Leave(1);
  EXPECT_TRUE(sinks_[0].empty());
}

TEST(SaveMessageTest, MessagesComeBackAsTheyWereSent) {
  const auto round_trip = [](auto what) {
    const ToNode message = SaveMessage{.model = "m", .what = what};
    return std::get<decltype(what)>(std::get<SaveMessage>(*FromProto(ToProto(message))).what);
  };
  EXPECT_EQ(round_trip(OrderOf(4)), OrderOf(4));
  EXPECT_EQ(round_trip(SavePermission{.id = absl::MakeUint128(1, 2)}).id, absl::MakeUint128(1, 2));
  const SavePart part = round_trip(SavePart{.id = 1, .hash = absl::MakeUint128(3, 4)});
  EXPECT_EQ(part.hash, absl::MakeUint128(3, 4));
  EXPECT_OK(part.status);
  EXPECT_EQ(round_trip(SavePart{.status = absl::DataLossError("x")}).status, absl::DataLossError("x"));
  for (const SaveState state :
       {SaveState::kPublished, SaveState::kAbandoned, SaveState::kUnknown, SaveState::kAlreadySaved}) {
    EXPECT_EQ(round_trip(SaveEnd{.state = state}).state, state);
  }
  const SaveEnd end = round_trip(SaveEnd{.path = "p", .size_bytes = 8, .why = absl::UnavailableError("y")});
  EXPECT_EQ(end.path, "p");
  EXPECT_EQ(end.size_bytes, 8);
  EXPECT_EQ(end.why, absl::UnavailableError("y"));
}

TEST(SaveMessageTest, MessagesThatSayNothingOrWhatIsUnknownDoNoHarm) {
  v1::JoinResponse response;
  v1::SaveMessage& message = *response.mutable_save();
  EXPECT_FALSE(FromProto(response).has_value());
  const auto what = [&response] { return std::get<SaveMessage>(*FromProto(response)).what; };
  message.mutable_order()->set_reason(static_cast<v1::SaveReason>(99));
  EXPECT_EQ(std::get<SaveOrder>(what()).reason, SaveReason::kCall);
  message.mutable_end()->set_state(v1::SAVE_STATE_COPYING);
  EXPECT_EQ(std::get<SaveEnd>(what()).state, SaveState::kAbandoned);
  message.mutable_part()->mutable_error()->set_code(0);
  EXPECT_FALSE(std::get<SavePart>(what()).status.ok()) << "an error is one, whatever its code";
}

// A world of two over gRPC.
TEST(SaveMessageTest, OrdersAndPartsTravelBetweenDaemons) {
  ASSERT_OK_AND_ASSIGN(CoordinatorNode zero,
                       MakeCoordinatorCluster({.nodes = 2, .devices = 1, .terms = {.save_dir = "/a"}}));
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(zero.service.get());
  const auto server = builder.BuildAndStart();
  const RemoteOptions options{.coordinator_address = absl::StrCat("127.0.0.1:", port), .terms = {.save_dir = "/a"}};
  ASSERT_OK_AND_ASSIGN(const auto one, MakeRemoteCluster(options));
  RecordingListener of_zero, of_one;
  zero.cluster->SetListener(&of_zero);
  one->SetListener(&of_one);
  ASSERT_OK(zero.cluster->Send(SaveMessage{.model = "m", .what = OrderOf(4)}));
  EXPECT_EQ(std::get<SaveOrder>(of_one.Next().save->what), OrderOf(4));
  ASSERT_OK(one->Send(SaveMessage{.model = "m", .what = SavePart{.id = 9, .hash = 5}}));
  EXPECT_EQ(std::get<SavePart>(of_zero.Next().save->what).node, 1);
  one->SetListener(nullptr);
  zero.cluster->SetListener(nullptr);
  one->Stop();
  zero.cluster->Stop();
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace
}  // namespace paramshard::server
