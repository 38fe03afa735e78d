// The world over real gRPC servers on loopback ports.
#include "server/world/remote_cluster.h"

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "common/rpc/durations.h"
#include "paramshard/v1/cluster.grpc.pb.h"
#include "server/base/thread.h"
#include "server/observe/metric_registry.h"
#include "server/world/cluster_messages.h"
#include "server/world/cluster_service.h"
#include "server/world/coordinator_cluster.h"
#include "tests/server/world/recording_listener.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(1);

// Serves on 127.0.0.1; port 0 takes a free one, which `port` then is.
std::unique_ptr<grpc::Server> Serve(grpc::Service* service, int* port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", *port), grpc::InsecureServerCredentials(), port);
  builder.RegisterService(service);
  return builder.BuildAndStart();
}

// Node 0 with two devices, of a world of `nodes`. Its coordinator outlives its connections, so that
// these can break.
class CoordinatorServer {
 public:
  explicit CoordinatorServer(int nodes = 2) : coordinator_(nodes) {
    EXPECT_OK(coordinator_.Join(0, 2, &listener));
    Open();
  }
  ~CoordinatorServer() {
    coordinator_.Stop();
    Close();
  }

  // Breaks all connections; Open takes new ones on the same port.
  void Close() {
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  void Open() {
    service_ = std::make_unique<ClusterServiceImpl>(&coordinator_);
    server_ = Serve(service_.get(), &port_);
    ASSERT_NE(server_, nullptr);
  }

  int nodes() const { return coordinator_.nodes(); }
  Coordinator& coordinator() { return coordinator_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  RecordingListener listener;

 private:
  Coordinator coordinator_;
  std::unique_ptr<ClusterServiceImpl> service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

RemoteOptions Options(const CoordinatorServer& zero, int node = 1, int devices = 1) {
  RemoteOptions options;
  options.node = node;
  options.nodes = zero.nodes();
  options.devices = devices;
  options.coordinator_address = zero.address();
  options.join_timeout = kLong;
  options.ghost_timeout = absl::ZeroDuration();
  return options;
}

// A world of two nodes: ranks 0 and 1 on node 0, rank 2 on node 1.
class RemoteClusterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(one_, MakeRemoteCluster(Options(zero_)));
    one_->SetListener(&listener_);
    ASSERT_OK(one_->AwaitWorld(kLong));
  }
  void TearDown() override {
    if (one_ != nullptr) one_->SetListener(nullptr);
  }

  int64_t StartEpoch() {
    EXPECT_OK(zero_.coordinator().Step(0, MakeReport({0, 1})));
    one_->Send(MakeReport({2})).IgnoreError();
    const ReceivedMessage zero = zero_.listener.Next();
    const ReceivedMessage one = listener_.Next();
    EXPECT_TRUE(zero.start && one.start) << zero.why << one.why;
    EXPECT_EQ(zero.epoch, one.epoch);
    return one.epoch;
  }

  absl::StatusOr<CommitDecision> VoteOfZero(int64_t epoch, int64_t commit_number) {
    return zero_.coordinator().Vote(0, MakeVote(epoch, commit_number, {{0, 4, 0}, {1, 2, 0}}), kLong);
  }
  CommitVote VoteOfOne(int64_t epoch, int64_t commit_number) { return MakeVote(epoch, commit_number, {{2, 1, 0}}); }

  CoordinatorServer zero_;
  RecordingListener listener_;
  std::unique_ptr<Cluster> one_;
};

TEST_F(RemoteClusterTest, KnowsTheWorld) {
  EXPECT_EQ(one_->node(), 1);
  EXPECT_EQ(one_->nodes(), 2);
  EXPECT_THAT(one_->device_counts(), ElementsAre(2, 1));
}

TEST_F(RemoteClusterTest, EpochsStartAndEndOnAllNodes) {
  const int64_t first = StartEpoch();
  one_->Send(EndEpoch{.model = "m", .epoch = first, .why = absl::AbortedError("rank 2 left")}).IgnoreError();
  EXPECT_THAT(zero_.listener.Next().why, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2 left")));
  EXPECT_THAT(listener_.Next().why, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2 left")));
  const int64_t second = StartEpoch();
  EXPECT_GT(second, first);
  EXPECT_OK(zero_.coordinator().Step(
      0, EndEpoch{.model = "m", .epoch = second, .why = absl::DeadlineExceededError("rank 0 hangs")}));
  const ReceivedMessage message = listener_.Next();
  EXPECT_EQ(message.epoch, second);
  EXPECT_THAT(message.why, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 0 hangs")));
}

TEST_F(RemoteClusterTest, BadLinksTravelWithTheEndOfAnEpoch) {
  const int64_t epoch = StartEpoch();
  one_->Send(EndEpoch{.model = "m",
                      .epoch = epoch,
                      .why = absl::UnavailableError("node 1 does not reach node 0"),
                      .bad_links = {{.peer = 0, .address = "10.9.0.11", .peer_address = "10.9.0.10"}}})
      .IgnoreError();
  const absl::Status why = zero_.listener.Next().why;
  EXPECT_THAT(why, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 0 (10.9.0.10) and node 1 (10.9.0.11)")));
  EXPECT_THAT(zero_.coordinator().ViewWorld().cut_links, ElementsAre("node 0 (10.9.0.10) and node 1 (10.9.0.11)"));
  EXPECT_GT(StartEpoch(), epoch);
}

TEST_F(RemoteClusterTest, StatesThatDifferAreToldToAllNodes) {
  EXPECT_OK(zero_.coordinator().Step(0, MakeReport({0, 1}, 3, 3)));
  one_->Send(MakeReport({2}, 2, 2)).IgnoreError();
  const ReceivedMessage message = listener_.Next();
  EXPECT_TRUE(message.refused);
  EXPECT_THAT(message.why, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("export from one")));
}

TEST_F(RemoteClusterTest, LossesTravelWithReports) {
  ModelReport lost;
  lost.model = "m";
  lost.lost = absl::DataLossError("gone");
  one_->Send(lost).IgnoreError();
  EXPECT_OK(zero_.coordinator().Step(0, MakeReport({0, 1})));
  // The loss may have come there before this report, or comes behind it.
  const ReceivedMessage message = zero_.listener.Next();
  EXPECT_TRUE(message.refused);
  EXPECT_THAT(message.why, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("got none on node 1 (rank 2): gone")));
}

TEST_F(RemoteClusterTest, HistoriesTravelWithReports) {
  ModelReport of_zero = MakeReport({0, 1}, 3, 3);
  of_zero.history_id = "aa";
  ModelReport of_one = MakeReport({2}, 3, 3);
  of_one.history_id = "bb";
  EXPECT_OK(zero_.coordinator().Step(0, of_zero));
  one_->Send(of_one).IgnoreError();
  EXPECT_THAT(listener_.Next().why,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("of history aa on node 0 (ranks 0..1), version 3 (commit 3) of history bb on")));
}

TEST_F(RemoteClusterTest, VotesAreDecidedOverAllNodes) {
  const int64_t epoch = StartEpoch();
  auto vote = std::async(std::launch::async, [&] { return one_->Vote(VoteOfOne(epoch, 1)); });
  ASSERT_OK_AND_ASSIGN(const CommitDecision zero, VoteOfZero(epoch, 1));
  ASSERT_OK_AND_ASSIGN(const CommitDecision one, vote.get());
  EXPECT_TRUE(zero.apply && one.apply);
  EXPECT_EQ(zero.square_sum, 7);
  EXPECT_EQ(one.square_sum, 7);
}

TEST_F(RemoteClusterTest, VotesOnDifferentCommitsAreRefused) {
  const int64_t epoch = StartEpoch();
  auto vote = std::async(std::launch::async, [&] { return VoteOfZero(epoch, 1); });
  EXPECT_THAT(one_->Vote(VoteOfOne(epoch, 2)), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("commit 1")));
  EXPECT_THAT(vote.get(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(RemoteClusterTest, CommandsAreComparedWhereVotesDiffer) {
  const int64_t epoch = StartEpoch();
  CommitVote vote = VoteOfOne(epoch, 1);
  vote.commands = {.number = 5, .hash = absl::MakeUint128(1, 2)};
  auto one = std::async(std::launch::async, [&] { return one_->Vote(vote); });
  auto zero = std::async(std::launch::async, [&] { return VoteOfZero(epoch, 1); });
  EXPECT_EQ(listener_.Next().commands_wanted_unless, CommandsThrough());
  EXPECT_EQ(zero_.listener.Next().commands_wanted_unless, CommandsThrough());
  EXPECT_OK(zero_.coordinator().Step(
      0, CommandReports{.model = "m", .epoch = epoch, .commands = {{4, 0, "same"}, {5, 0, "a"}}}));
  one_->Send(CommandReports{.model = "m", .epoch = epoch, .commands = {{4, 2, "same"}, {5, 2, "b"}}}).IgnoreError();
  EXPECT_THAT(listener_.Next().why,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("command 5"), HasSubstr("rank 0 sent a"), HasSubstr("rank 2 sent b"))));
  EXPECT_THAT(zero.get(), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(one.get(), StatusIs(absl::StatusCode::kAborted));
}

TEST_F(RemoteClusterTest, ALateNodeIsToldWhatTheOthersHaveSent) {
  const int64_t epoch = StartEpoch();
  CommitVote vote = MakeVote(epoch, 1, {{0, 4, 0}, {1, 2, 0}});
  vote.commands = {.number = 5, .hash = absl::MakeUint128(1, 2)};
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(zero_.coordinator().Vote(0, vote, absl::ZeroDuration()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  EXPECT_EQ(listener_.Next().commands_wanted_unless, vote.commands);
}

TEST_F(RemoteClusterTest, AModelThatIsGoneFromANodeEndsItsEpoch) {
  const int64_t epoch = StartEpoch();
  one_->Send(ModelDeleted{.model = "m"}).IgnoreError();
  const ReceivedMessage message = zero_.listener.Next();
  EXPECT_EQ(message.epoch, epoch);
  EXPECT_THAT(message.why, StatusIs(absl::StatusCode::kAborted, HasSubstr("deleted on node 1 (rank 2)")));
}

TEST_F(RemoteClusterTest, NodeZeroNamesTheNodeThatIsLost) {
  StartEpoch();
  one_.reset();
  EXPECT_THAT(zero_.listener.Next().why,
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("node 1 (rank 2) lost: attach again when its daemon serves again")));
}

TEST_F(RemoteClusterTest, ALostNodeZeroEndsEpochsAndIsJoinedAgain) {
  const int64_t first = StartEpoch();
  EXPECT_OK(one_->CheckCoordinator());
  zero_.Close();
  const ReceivedMessage lost = listener_.Next();
  EXPECT_EQ(lost.epoch, first);
  EXPECT_THAT(one_->CheckCoordinator(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is not reached: ")));
  EXPECT_THAT(lost.why, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 0 (127.0.0.1:")));
  EXPECT_FALSE(zero_.listener.Next().start);
  // Reported while node 0 is away, and repeated later.
  one_->Send(MakeReport({2})).IgnoreError();
  zero_.Open();
  EXPECT_OK(zero_.coordinator().Step(0, MakeReport({0, 1})));
  const ReceivedMessage next = listener_.Next();
  EXPECT_TRUE(next.start) << next.why;
  EXPECT_GT(next.epoch, first);
  EXPECT_OK(one_->CheckCoordinator());
}

TEST_F(RemoteClusterTest, AVoteInDoubtIsRepeatedUntilTheDecisionIsKnown) {
  const int64_t epoch = StartEpoch();
  // Node 1's vote arrives, and the answer is lost with the connection.
  auto lost = std::async(std::launch::async, [&] { return zero_.coordinator().Vote(1, VoteOfOne(epoch, 1), kLong); });
  ASSERT_OK(VoteOfZero(epoch, 1));
  ASSERT_OK(lost.get());
  zero_.Close();
  auto vote = std::async(std::launch::async, [&] { return one_->Vote(VoteOfOne(epoch, 1)); });
  EXPECT_EQ(listener_.Next().epoch, epoch);  // the epoch is over meanwhile
  zero_.Open();
  ASSERT_OK_AND_ASSIGN(const CommitDecision decision, vote.get());
  EXPECT_TRUE(decision.apply);
  EXPECT_EQ(decision.square_sum, 7);
}

TEST_F(RemoteClusterTest, AVoteInDoubtThatWasNotDecidedIsAborted) {
  const int64_t epoch = StartEpoch();
  auto vote = std::async(std::launch::async, [&] { return one_->Vote(VoteOfOne(epoch, 1)); });
  zero_.Close();
  zero_.Open();
  EXPECT_THAT(vote.get(), StatusIs(absl::StatusCode::kAborted, HasSubstr("ended before the decision")));
}

TEST_F(RemoteClusterTest, ADecisionIsWrittenDownBeforeAVoteReturns) {
  const int64_t epoch = StartEpoch();
  CommitVote vote = VoteOfOne(epoch, 1);
  double written = 0;
  vote.write_down = [&](const CommitDecision& decision) {
    written = decision.square_sum;
    return absl::InternalError("no");
  };
  auto zero = std::async(std::launch::async, [&] { return VoteOfZero(epoch, 1); });
  EXPECT_THAT(one_->Vote(vote), StatusIs(absl::StatusCode::kInternal));
  EXPECT_OK(zero.get());
  EXPECT_EQ(written, 7);
}

TEST_F(RemoteClusterTest, NodeZeroIsAskedWhatBecameOfACommitUntilItAnswers) {
  const int64_t epoch = StartEpoch();
  auto lost = std::async(std::launch::async, [&] { return zero_.coordinator().Vote(1, VoteOfOne(epoch, 1), kLong); });
  ASSERT_OK(VoteOfZero(epoch, 1));
  ASSERT_OK(lost.get());
  zero_.Close();
  const auto ask = [&](int64_t commit_number) {
    return one_->QueryCommit({.model = "m", .epoch = epoch, .commit_number = commit_number});
  };
  auto decision = std::async(std::launch::async, [&] { return ask(1); });
  zero_.Open();
  ASSERT_OK_AND_ASSIGN(const CommitDecision decided, decision.get());
  EXPECT_TRUE(decided.apply);
  EXPECT_EQ(decided.square_sum, 7);
  EXPECT_THAT(ask(2), StatusIs(absl::StatusCode::kAborted, HasSubstr("ended before the decision")));
  EXPECT_THAT(one_->QueryCommit({.model = "n", .epoch = epoch, .commit_number = 1}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("unknown to node 0")));
}

TEST_F(RemoteClusterTest, StopEndsAVoteThatStaysInDoubt) {
  const int64_t epoch = StartEpoch();
  zero_.Close();
  auto vote = std::async(std::launch::async, [&] { return one_->Vote(VoteOfOne(epoch, 1)); });
  one_->Stop();
  one_->Stop();
  EXPECT_THAT(vote.get(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("in doubt")));
  zero_.Open();
}

TEST_F(RemoteClusterTest, AModelThatIsForgottenLeavesNoVoteInDoubt) {
  const int64_t epoch = StartEpoch();
  zero_.Close();
  auto vote = std::async(std::launch::async, [&] { return one_->Vote(VoteOfOne(epoch, 1)); });
  auto other = std::async(std::launch::async, [&] {
    CommitVote vote_on_other = VoteOfOne(epoch, 1);
    vote_on_other.model = "other";
    return one_->Vote(vote_on_other);
  });
  // A vote that has not begun is not ended.
  while (vote.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready)
    one_->Send(ModelDeleted{.model = "m"}).IgnoreError();
  EXPECT_THAT(vote.get(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("deleted on this node")));
  zero_.Open();
  EXPECT_THAT(other.get(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("unknown to node 0")));
}

TEST_F(RemoteClusterTest, AVoteThatWaitsForOthersIsAbortedWhenNodeZeroStops) {
  const int64_t epoch = StartEpoch();
  auto vote = std::async(std::launch::async, [&] { return one_->Vote(VoteOfOne(epoch, 1)); });
  zero_.coordinator().Stop();
  EXPECT_THAT(vote.get(), StatusIs(absl::StatusCode::kAborted, HasSubstr("ended before the decision")));
}

TEST_F(RemoteClusterTest, StopOfNodeZeroEndsEverything) {
  StartEpoch();
  zero_.coordinator().Stop();
  EXPECT_THAT(listener_.Next().why, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 0")));
}

TEST_F(RemoteClusterTest, ValuesAreShared) {
  const int64_t epoch = StartEpoch();
  const auto rendezvous = one_->MakeRendezvous("m", epoch);
  ASSERT_OK(rendezvous->Put("one", std::string("\0binary", 7)));
  EXPECT_THAT(zero_.coordinator().Get(1, "m", epoch, "one", absl::ZeroDuration()),
              IsOkAndHolds(std::string("\0binary", 7)));
  auto waiting = std::async(std::launch::async, [&] { return rendezvous->Get(0, "zero", kLong); });
  ASSERT_OK(zero_.coordinator().Put(0, "m", epoch, "zero", "v"));
  EXPECT_THAT(waiting.get(), IsOkAndHolds("v"));
  EXPECT_THAT(rendezvous->Get(0, "nobody", absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("got no value of node 0")));
  one_->Send(EndEpoch{.model = "m", .epoch = epoch, .why = absl::AbortedError("over")}).IgnoreError();
  EXPECT_FALSE(listener_.Next().start);
  EXPECT_THAT(rendezvous->Put("late", "v"), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(rendezvous->Get(1, "one", kLong), StatusIs(absl::StatusCode::kAborted));
}

TEST_F(RemoteClusterTest, PartsAreSharedAndEveryNodeReadsItsOwn) {
  const int64_t epoch = StartEpoch();
  const auto rendezvous = one_->MakeRendezvous("m", epoch);
  ASSERT_OK(rendezvous->PutParts("k", {std::string("\0 for 0", 7), "1 for 1"}));
  EXPECT_THAT(rendezvous->GetParts("k", absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("got no part of node 0 (ranks 0..1)")));
  auto waiting = std::async(std::launch::async, [&] { return rendezvous->GetParts("k", kLong); });
  ASSERT_OK(zero_.coordinator().PutParts(0, "m", epoch, "k", {"0 for 0", ""}));
  EXPECT_THAT(waiting.get(), IsOkAndHolds(ElementsAre("", "1 for 1")));
  EXPECT_THAT(zero_.coordinator().GetParts(0, "m", epoch, "k", absl::ZeroDuration()),
              IsOkAndHolds(ElementsAre("0 for 0", std::string("\0 for 0", 7))));
}

TEST_F(RemoteClusterTest, ASecondDaemonWithTheSameNumberIsRefused) {
  EXPECT_THAT(MakeRemoteCluster(Options(zero_)).status(),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("node 1: a live daemon has this node number")));
  EXPECT_THAT(MakeRemoteCluster(Options(zero_, 7)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want a node number in 0..1")));
  // The first one is as it was.
  StartEpoch();
}

// Its machine has lost power, say, and node 0 has not noticed yet.
TEST_F(RemoteClusterTest, ADaemonTakesThePlaceOfOneThatNodeZeroStillBelievesAlive) {
  RemoteOptions options = Options(zero_);
  options.ghost_timeout = kLong;
  auto joining = std::async(std::launch::async, [&] { return MakeRemoteCluster(options); });
  one_.reset();
  ASSERT_OK_AND_ASSIGN(one_, joining.get());
  ASSERT_OK(one_->AwaitWorld(kLong));
  EXPECT_THAT(one_->device_counts(), ElementsAre(2, 1));
}

TEST_F(RemoteClusterTest, VotesInTheNameOfNodeZeroAreRefused) {
  const auto stub =
      v1::ClusterService::NewStub(grpc::CreateChannel(zero_.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::VoteResponse response;
  EXPECT_EQ(stub->Vote(&context, VoteMessage(0, VoteOfOne(1, 1), kLong), &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RemoteClusterTest, AVoteThatIsNotDecidedInTimeIsAnsweredSoAndCounts) {
  const int64_t epoch = StartEpoch();
  const auto stub =
      v1::ClusterService::NewStub(grpc::CreateChannel(zero_.address(), grpc::InsecureChannelCredentials()));
  {
    grpc::ClientContext context;
    v1::VoteResponse response;
    EXPECT_TRUE(stub->Vote(&context, VoteMessage(1, VoteOfOne(epoch, 1), absl::Milliseconds(1)), &response).ok());
    EXPECT_FALSE(response.has_decision());
  }
  EXPECT_OK(VoteOfZero(epoch, 1));
}

TEST_F(RemoteClusterTest, AVoteThatIsCancelledCounts) {
  const int64_t epoch = StartEpoch();
  const auto stub =
      v1::ClusterService::NewStub(grpc::CreateChannel(zero_.address(), grpc::InsecureChannelCredentials()));
  for (int64_t commit_number = 1; commit_number <= 20; ++commit_number) {
    grpc::ClientContext context;
    v1::VoteResponse response;
    auto vote = std::async(std::launch::async, [&] {
      return stub->Vote(&context, VoteMessage(1, VoteOfOne(epoch, commit_number), kLong), &response);
    });
    auto decided = std::async(std::launch::async, [&] { return VoteOfZero(epoch, commit_number).status(); });
    // Before the decision, with it, or behind it.
    context.TryCancel();
    const grpc::Status status = vote.get();
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED);
    // It may not have come to node 0.
    EXPECT_OK(one_->Vote(VoteOfOne(epoch, commit_number)));
    EXPECT_OK(decided.get());
  }
}

TEST_F(RemoteClusterTest, AStreamThatDoesNotSayHelloIsRefused) {
  const auto stub =
      v1::ClusterService::NewStub(grpc::CreateChannel(zero_.address(), grpc::InsecureChannelCredentials()));
  for (const bool other_version : {false, true}) {
    grpc::ClientContext context;
    const auto stream = stub->Join(&context);
    v1::JoinRequest first = other_version ? HelloMessage(1, 2, 1, {}) : ToProto(ModelDeleted{.model = "m"});
    if (other_version) first.mutable_hello()->set_protocol_version(99);
    stream->Write(first);
    EXPECT_EQ(stream->Finish().error_code(),
              other_version ? grpc::StatusCode::FAILED_PRECONDITION : grpc::StatusCode::INVALID_ARGUMENT);
  }
}

// A node 0 that welcomes, and answers votes as a test says.
class PuppetCoordinator final : public v1::ClusterService::Service {
 public:
  using Answer = std::function<grpc::Status(grpc::ServerContext*, v1::VoteResponse*)>;

  explicit PuppetCoordinator(Answer answer) : answer_(std::move(answer)) { server_ = Serve(this, &port_); }
  ~PuppetCoordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }

  RemoteOptions options() const {
    RemoteOptions options;
    options.coordinator_address = absl::StrCat("127.0.0.1:", port_);
    options.join_timeout = kLong;
    return options;
  }

  grpc::Status Join(grpc::ServerContext*,
                    grpc::ServerReaderWriter<v1::JoinResponse, v1::JoinRequest>* stream) override {
    stream->Write(ToProto(Welcome{.nodes = 2, .device_counts = {1, 1}}));
    v1::JoinRequest request;
    while (stream->Read(&request)) {
    }
    return grpc::Status::OK;
  }
  grpc::Status Vote(grpc::ServerContext* context, const v1::VoteRequest*, v1::VoteResponse* response) override {
    return answer_(context, response);
  }

 private:
  const Answer answer_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(DoubtTest, ANodeZeroThatIsGoneForLongerThanTheBoundIsNamed) {
  RemoteOptions options;
  std::unique_ptr<Cluster> one;
  {
    PuppetCoordinator zero([](grpc::ServerContext*, v1::VoteResponse*) { return grpc::Status::OK; });
    options = zero.options();
    options.doubt_timeout = absl::Milliseconds(50);
    ASSERT_OK_AND_ASSIGN(one, MakeRemoteCluster(options));
  }
  EXPECT_THAT(one->Vote(MakeVote(1, 1, {{1, 1, 0}})),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("vote m commit 1"), HasSubstr("timed out"),
                                                          HasSubstr(options.coordinator_address))));
}

// It takes calls and says nothing, as a stopped process does.
TEST(DoubtTest, ANodeZeroThatStandsStillIsNoOtherThanOneThatIsGone) {
  PuppetCoordinator zero([](grpc::ServerContext* context, v1::VoteResponse*) {
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  });
  RemoteOptions options = zero.options();
  options.doubt_timeout = absl::Milliseconds(50);
  ASSERT_OK_AND_ASSIGN(const auto one, MakeRemoteCluster(options));
  EXPECT_THAT(one->Vote(MakeVote(1, 1, {{1, 1, 0}})), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("timed out")));
}

TEST(DoubtTest, AnAnswerWithoutADecisionIsAskedAgain) {
  std::atomic<int> votes{0};
  PuppetCoordinator zero([&](grpc::ServerContext*, v1::VoteResponse* response) {
    if (++votes == 4) *response->mutable_decision() = DecisionMessage({.apply = true, .square_sum = 7});
    return grpc::Status::OK;
  });
  ASSERT_OK_AND_ASSIGN(const auto one, MakeRemoteCluster(zero.options()));
  ASSERT_OK_AND_ASSIGN(const CommitDecision decision, one->Vote(MakeVote(1, 1, {{1, 1, 0}})));
  EXPECT_TRUE(decision.apply);
  EXPECT_EQ(decision.square_sum, 7);
  EXPECT_EQ(votes, 4);
}

int64_t RoundTrips(const MetricRegistry& metrics) {
  int64_t count = 0;
  for (int bucket = 0; bucket + 1 < CellsOf(TraitsOf(Metric::kPeerRoundTrip)); ++bucket) {
    count += metrics.bucket(Metric::kPeerRoundTrip, 0, bucket);
  }
  return count;
}

TEST(RoundTripTest, IsWhatAVoteTookWithoutWhatNodeZeroHeldIt) {
  std::optional<absl::Duration> held = absl::ZeroDuration();
  PuppetCoordinator zero([&](grpc::ServerContext*, v1::VoteResponse* response) {
    if (held.has_value()) *response->mutable_held() = DurationToProto(*held);
    *response->mutable_decision() = DecisionMessage({.apply = true});
    return grpc::Status::OK;
  });
  MetricRegistry metrics;
  RemoteOptions options = zero.options();
  options.metrics = &metrics;
  ASSERT_OK_AND_ASSIGN(const auto one, MakeRemoteCluster(options));
  ASSERT_OK(one->Vote(MakeVote(1, 1, {{1, 1, 0}})));
  EXPECT_EQ(RoundTrips(metrics), 1);
  const int64_t first = metrics.sum_nanoseconds(Metric::kPeerRoundTrip, 0);
  EXPECT_GT(first, 0);
  // No round trip is shorter than zero or longer than the call, whatever node 0 reports.
  for (const absl::Duration word : {absl::Hours(1), absl::InfiniteDuration()}) {
    held = word;
    ASSERT_OK(one->Vote(MakeVote(1, 2, {{1, 1, 0}})));
    EXPECT_EQ(metrics.sum_nanoseconds(Metric::kPeerRoundTrip, 0), first);
  }
  EXPECT_EQ(RoundTrips(metrics), 3);
  const absl::Time begin = absl::Now();
  held = -absl::InfiniteDuration();
  ASSERT_OK(one->Vote(MakeVote(1, 3, {{1, 1, 0}})));
  EXPECT_LE(metrics.sum_nanoseconds(Metric::kPeerRoundTrip, 0) - first, absl::ToInt64Nanoseconds(absl::Now() - begin));
  held = std::nullopt;
  ASSERT_OK(one->Vote(MakeVote(1, 4, {{1, 1, 0}})));
  EXPECT_EQ(RoundTrips(metrics), 4) << "a node 0 that says nothing of it";
}

TEST_F(RemoteClusterTest, NodeZeroSaysForHowLongItHasHeldAVote) {
  const int64_t epoch = StartEpoch();
  const auto stub =
      v1::ClusterService::NewStub(grpc::CreateChannel(zero_.address(), grpc::InsecureChannelCredentials()));
  const auto vote = [&](absl::Duration wait) {
    grpc::ClientContext context;
    v1::VoteResponse response;
    EXPECT_OK(FromGrpcStatus(stub->Vote(&context, VoteMessage(1, VoteOfOne(epoch, 1), wait), &response)));
    EXPECT_TRUE(response.has_held());
    return response;
  };
  const absl::Time begin = absl::Now();
  const v1::VoteResponse waited = vote(absl::Milliseconds(50));
  const absl::Duration took = absl::Now() - begin;
  EXPECT_FALSE(waited.has_decision());
  EXPECT_GT(DurationFromProto(waited.held()), absl::ZeroDuration());
  EXPECT_LT(DurationFromProto(waited.held()), took);
  auto decided = std::async(std::launch::async, [&] { return vote(kLong); });
  EXPECT_OK(VoteOfZero(epoch, 1));
  EXPECT_TRUE(decided.get().has_decision());
}

// A node that renews its certificate, on connections in the clear.
class RenewalTest : public testing::Test {
 protected:
  void SetUp() override {
    RemoteOptions options = Options(zero_);
    options.own_certificate = [this]() -> absl::StatusOr<tls::Certificate> {
      if (version_ < 0) return absl::FailedPreconditionError("--tls-cert c: the certificate is not valid");
      return tls::Certificate{
          .uris = {}, .not_before = {}, .not_after = {}, .fingerprint = absl::StrCat(version_.load())};
    };
    options.make_credentials = [this] {
      ++links_;
      return grpc::InsecureChannelCredentials();
    };
    options.renewal_period = absl::Milliseconds(1);
    ASSERT_OK_AND_ASSIGN(one_, MakeRemoteCluster(options));
    one_->SetListener(&listener_);
    ASSERT_OK(one_->AwaitWorld(kLong));
  }
  void TearDown() override {
    if (one_ != nullptr) one_->SetListener(nullptr);
  }
  // The second link begins when the node goes on with the first one: until then it has no other one in mind.
  void Renew() {
    for (int i = 0; i < 2; ++i) {
      const int before = links_;
      ++version_;
      while (links_ == before) std::this_thread::yield();
    }
  }

  CoordinatorServer zero_;
  RecordingListener listener_;
  std::atomic<int> version_{0};
  std::atomic<int> links_{0};
  std::unique_ptr<Cluster> one_;
};

TEST_F(RenewalTest, EpochsGoOnOverManyRenewals) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_OK(zero_.coordinator().Step(0, MakeReport({0, 1})));
    Renew();
    one_->Send(MakeReport({2})).IgnoreError();
    const ReceivedMessage start = listener_.Next();
    ASSERT_TRUE(start.start) << start.why;
    ASSERT_EQ(zero_.listener.Next().epoch, start.epoch);
    for (int commit = 1; commit <= 3; ++commit) {
      auto vote = std::async(std::launch::async, [&] {
        return one_->Vote(MakeVote(start.epoch, commit, {{2, 1, 0}}));
      });
      Renew();
      ASSERT_OK(zero_.coordinator().Vote(0, MakeVote(start.epoch, commit, {{0, 4, 0}, {1, 2, 0}}), kLong));
      ASSERT_OK(vote.get());
    }
    EXPECT_TRUE(listener_.empty());
    one_->Send(EndEpoch{.model = "m", .epoch = start.epoch, .why = absl::AbortedError("rank 2 left")}).IgnoreError();
    EXPECT_THAT(zero_.listener.Next().why, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2 left")));
    EXPECT_THAT(listener_.Next().why, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2 left")));
  }
}

// Messages of both ends arrive in order while streams replace each other.
TEST_F(RenewalTest, NothingIsLostAndNothingOvertakes) {
  std::atomic<bool> done{false};
  std::thread renewing([&] {
    while (!done) Renew();
  });
  constexpr int kMessages = 500;
  for (int i = 1; i <= kMessages; ++i) {
    SaveMessage part{.model = "m", .what = SavePart{.id = static_cast<absl::uint128>(i)}};
    ASSERT_OK(one_->Send(part));
    ASSERT_OK(zero_.coordinator().Step(
        0, SaveMessage{.model = "m", .what = SavePermission{.id = static_cast<absl::uint128>(i)}}));
    if (i % 10 == 0) std::this_thread::yield();
  }
  for (int i = 1; i <= kMessages; ++i) {
    const ReceivedMessage to_zero = zero_.listener.Next();
    ASSERT_TRUE(to_zero.save.has_value()) << to_zero.why;
    EXPECT_EQ(std::get<SavePart>(to_zero.save->what).id, static_cast<absl::uint128>(i));
    const ReceivedMessage to_one = listener_.Next();
    ASSERT_TRUE(to_one.save.has_value()) << to_one.why;
    EXPECT_EQ(std::get<SavePermission>(to_one.save->what).id, static_cast<absl::uint128>(i));
  }
  done = true;
  renewing.join();
}

TEST_F(RenewalTest, AValueThatIsWaitedForComes) {
  EXPECT_OK(zero_.coordinator().Step(0, MakeReport({0, 1})));
  one_->Send(MakeReport({2})).IgnoreError();
  const int64_t epoch = listener_.Next().epoch;
  const auto rendezvous = one_->MakeRendezvous("m", epoch);
  auto value = std::async(std::launch::async, [&] { return rendezvous->Get(0, "k", kLong); });
  Renew();
  EXPECT_OK(rendezvous->Put("l", "w"));
  EXPECT_OK(zero_.coordinator().Put(0, "m", epoch, "k", "v"));
  EXPECT_THAT(value.get(), IsOkAndHolds("v"));
}

TEST_F(RenewalTest, AConnectionThatBreaksIsMadeAnewAndACertificateThatHasEndedIsNamed) {
  EXPECT_OK(zero_.coordinator().Step(0, MakeReport({0, 1})));
  one_->Send(MakeReport({2})).IgnoreError();
  ASSERT_TRUE(listener_.Next().start);
  Renew();
  version_ = -1000;
  zero_.Close();
  EXPECT_THAT(listener_.Next().why,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("node 0"), HasSubstr("--tls-cert c: the certificate is not valid"))));
  version_ = 1000;
  zero_.Open();
  one_->Send(MakeReport({2})).IgnoreError();
  EXPECT_OK(zero_.coordinator().Step(0, MakeReport({0, 1})));
  EXPECT_TRUE(listener_.Next().start);
}

// A node 0 whose end of epoch 1 comes after the node's report for the next epoch. Then the stream breaks.
class LateCoordinator final : public v1::ClusterService::Service {
 public:
  LateCoordinator() { server_ = Serve(this, &port_); }
  ~LateCoordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }

  RemoteOptions options() const {
    RemoteOptions options;
    options.coordinator_address = absl::StrCat("127.0.0.1:", port_);
    options.join_timeout = kLong;
    return options;
  }
  // The first report of the stream after that.
  ModelReport AwaitReportOfNextStream() { return reported_.get_future().get(); }

  grpc::Status Join(grpc::ServerContext*,
                    grpc::ServerReaderWriter<v1::JoinResponse, v1::JoinRequest>* stream) override {
    const int number = ++streams_;
    stream->Write(ToProto(Welcome{.nodes = 2, .device_counts = {1, 1}}));
    if (number == 1) stream->Write(ToProto(EpochStart{.model = "m", .epoch = 1}));
    v1::JoinRequest request;
    while (stream->Read(&request) && !request.has_report()) {
    }
    if (number == 1)
      stream->Write(ToProto(EpochEnded{.model = "m", .epoch = 1, .why = absl::AbortedError("rank 1 left")}));
    if (number == 2) reported_.set_value(std::get<ModelReport>(*FromProto(request)));
    return grpc::Status::OK;
  }

 private:
  std::atomic<int> streams_{0};
  std::promise<ModelReport> reported_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(LateEndTest, ATrainerThatWaitsForTheNextEpochIsReportedOnTheNextStreamToo) {
  LateCoordinator zero;
  RecordingListener listener;
  ASSERT_OK_AND_ASSIGN(const auto one, MakeRemoteCluster(zero.options()));
  one->SetListener(&listener);
  ASSERT_TRUE(listener.Next().start);
  one->Send(EndEpoch{.model = "m", .epoch = 1, .why = absl::AbortedError("rank 1 left")}).IgnoreError();
  one->Send(MakeReport({1})).IgnoreError();
  EXPECT_THAT(zero.AwaitReportOfNextStream().attached_ranks, ElementsAre(1));
  EXPECT_EQ(listener.Next().epoch, 1) << "the end was heard";
  one->SetListener(nullptr);
}

// A node 0 whose first stream breaks while an epoch runs.
class BreakingCoordinator final : public v1::ClusterService::Service {
 public:
  BreakingCoordinator() { server_ = Serve(this, &port_); }
  ~BreakingCoordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }

  RemoteOptions options() const {
    RemoteOptions options;
    options.coordinator_address = absl::StrCat("127.0.0.1:", port_);
    options.join_timeout = kLong;
    return options;
  }
  // Returns the first message on the next stream after the hello.
  v1::JoinRequest AwaitNextStream() { return second_.get_future().get(); }

  grpc::Status Join(grpc::ServerContext*,
                    grpc::ServerReaderWriter<v1::JoinResponse, v1::JoinRequest>* stream) override {
    const int number = ++streams_;
    stream->Write(ToProto(Welcome{.nodes = 2, .device_counts = {1, 1}}));
    v1::JoinRequest request;
    while (stream->Read(&request) && request.has_hello()) {
    }
    if (number == 1) stream->Write(ToProto(EpochStart{.model = "m", .epoch = 1}));
    if (number == 2) second_.set_value(request);
    return grpc::Status::OK;
  }

 private:
  std::atomic<int> streams_{0};
  std::promise<v1::JoinRequest> second_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// The state has changed since the epoch began.
TEST(BrokenStreamTest, WhatANodeSaidBeforeTheEpochIsNotSaidAgain) {
  BreakingCoordinator zero;
  RecordingListener listener;
  ASSERT_OK_AND_ASSIGN(const auto one, MakeRemoteCluster(zero.options()));
  one->SetListener(&listener);
  one->Send(MakeReport({1}, 100)).IgnoreError();
  ASSERT_TRUE(listener.Next().start);
  EXPECT_FALSE(listener.Next().start) << "its stream has broken";
  ModelReport next = MakeReport({1}, 5000);
  next.model = "other";  // behind m
  one->Send(next).IgnoreError();
  const v1::JoinRequest first = zero.AwaitNextStream();
  ASSERT_TRUE(first.has_report());
  EXPECT_EQ(first.report().model(), "other");
  one->SetListener(nullptr);
}

// gRPC refuses a call for which it finds no thread.
TEST(ManyNodesTest, VotesAndReadersThatWaitTakeNoThread) {
  constexpr int kNodes = 65;
  Coordinator coordinator(kNodes);
  std::vector<RecordingListener> sinks(kNodes);
  for (int node = 0; node < kNodes; ++node) ASSERT_OK(coordinator.Join(node, 1, &sinks[node]));
  for (int node = 0; node < kNodes; ++node)
    coordinator.Step(node, MakeReport({node}, 0, 0, 1, /*shard_size=*/1)).IgnoreError();
  const int64_t epoch = sinks[0].Next().epoch;
  ClusterServiceImpl service(&coordinator);
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(3);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto stub = v1::ClusterService::NewStub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  struct Call {
    grpc::ClientContext vote_context, value_context;
    v1::VoteRequest vote;
    v1::VoteResponse decision;
    v1::GetValueRequest key;
    v1::GetValueResponse value;
  };
  std::vector<Call> calls(kNodes);
  absl::BlockingCounter answers(2 * (kNodes - 1));
  for (int node = 1; node < kNodes; ++node) {
    Call& call = calls[node];
    call.vote = VoteMessage(node, MakeVote(epoch, 1, {{node, 1, 0}}), kLong);
    call.key.set_model("m");
    call.key.set_epoch(epoch);
    call.key.set_node(node);
    call.key.set_key("k");
    *call.key.mutable_timeout() = DurationToProto(kLong);
    const auto answered = [&](const grpc::Status& status) {
      EXPECT_OK(FromGrpcStatus(status));
      answers.DecrementCount();
    };
    stub->async()->Vote(&call.vote_context, &call.vote, &call.decision, answered);
    stub->async()->GetValue(&call.value_context, &call.key, &call.value, answered);
  }
  EXPECT_OK(coordinator.Put(0, "m", epoch, "k", "v"));
  ASSERT_OK(coordinator.Vote(0, MakeVote(epoch, 1, {{0, 1, 0}}), kLong));
  answers.Wait();
  for (int node = 1; node < kNodes; ++node) {
    EXPECT_TRUE(calls[node].decision.decision().apply());
    EXPECT_EQ(calls[node].value.value(), "v");
  }
  server->Shutdown();
}

TEST(ThreadShortageTest, JoiningIsRefusedAndCanBeTriedAgain) {
  CoordinatorServer zero;
  for (const int successes : {0, 1}) {
    const ThreadShortage shortage(successes);
    EXPECT_THAT(MakeRemoteCluster(Options(zero)).status(), StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_OK(MakeRemoteCluster(Options(zero)).status());
}

// The stream's own threads come later: its end tries again.
TEST(ThreadShortageTest, AStreamWithoutAThreadIsTriedAgain) {
  CoordinatorServer zero;
  std::optional<ThreadShortage> shortage(2);
  auto joining = std::async(std::launch::async, [&] { return MakeRemoteCluster(Options(zero)); });
  while (shortage->refusals() == 0) std::this_thread::yield();
  shortage.reset();
  EXPECT_OK(joining.get().status());
}

TEST(ThreadShortageTest, AWorldOfOneDaemonIsRefused) {
  const ThreadShortage shortage(0);
  EXPECT_THAT(MakeLocalCluster(1).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("messages to models")));
}

TEST(RemoteClusterJoinTest, AwaitWorldNamesTheMissingNodes) {
  CoordinatorServer zero(3);
  ASSERT_OK_AND_ASSIGN(const auto two, MakeRemoteCluster(Options(zero, 2)));
  EXPECT_THAT(two->AwaitWorld(absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("timed out after 10ms waiting for 3 nodes, missing: node 1")));
  auto waiting = std::async(std::launch::async, [&] { return two->AwaitWorld(kLong); });
  ASSERT_OK_AND_ASSIGN(const auto one, MakeRemoteCluster(Options(zero, 1, 4)));
  EXPECT_OK(waiting.get());
  EXPECT_THAT(two->device_counts(), ElementsAre(2, 4, 1));
}

TEST(RemoteClusterJoinTest, ANodeZeroThatIsNotThereIsNamed) {
  RemoteOptions options;
  {
    CoordinatorServer zero;
    options = Options(zero);
  }
  options.join_timeout = absl::Milliseconds(100);
  EXPECT_THAT(MakeRemoteCluster(options).status(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("join node 1"), HasSubstr(options.coordinator_address))));
}

TEST(RemoteClusterJoinTest, NodeZeroAsTheDaemonMakesIt) {
  CoordinatorOptions options;
  options.nodes = 2;
  ASSERT_OK_AND_ASSIGN(CoordinatorNode zero, MakeCoordinatorCluster(options));
  int port = 0;
  const std::unique_ptr<grpc::Server> server = Serve(zero.service.get(), &port);
  RemoteOptions remote;
  remote.coordinator_address = absl::StrCat("127.0.0.1:", port);
  ASSERT_OK_AND_ASSIGN(const auto one, MakeRemoteCluster(remote));
  ASSERT_OK(zero.cluster->AwaitWorld(kLong));
  RecordingListener listener;
  zero.cluster->SetListener(&listener);
  zero.cluster->Send(MakeReport({0}, 0, 0, 1, /*shard_size=*/1)).IgnoreError();
  one->Send(MakeReport({1}, 0, 0, 1, /*shard_size=*/1)).IgnoreError();
  const int64_t epoch = listener.Next().epoch;
  auto vote = std::async(std::launch::async, [&] { return one->Vote(MakeVote(epoch, 1, {{1, 5, 0}})); });
  ASSERT_OK_AND_ASSIGN(const CommitDecision decision, zero.cluster->Vote(MakeVote(epoch, 1, {{0, 3, 0}})));
  EXPECT_EQ(decision.square_sum, 3);
  EXPECT_OK(vote.get());
  zero.cluster->SetListener(nullptr);
  zero.cluster->Stop();
  server->Shutdown();  // no handler is left to wait for
}

}  // namespace
}  // namespace paramshard::server
