#include "server/world/node_stream_registry.h"

#include <atomic>
#include <future>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/world/recording_listener.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::uint128 kProcess = 7;

// Sink that records if its stream was told to end.
class StoppableSink final : public NodeSink {
 public:
  void Tell(const ToNode& message) override {
    std::holds_alternative<Probe>(message) ? static_cast<void>(++probes) : listener.Tell(message);
  }
  void OnStop() override { is_stopped = true; }

  RecordingListener listener;
  std::atomic<int> probes = 0;
  std::atomic<bool> is_stopped = false;
};

// Two nodes, the second of which has streams. An epoch runs.
class NodeStreamRegistryTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(coordinator_.Join(0, 2, &zero_));
    ASSERT_OK(streams_.Join(first_, 1));
    EXPECT_OK(coordinator_.Step(0, MakeReport({0, 1})));
    EXPECT_OK(coordinator_.Step(1, MakeReport({2})));
    ASSERT_TRUE(zero_.Next().start);
    ASSERT_TRUE(first_sink_.listener.Next().start);
  }
  static NodeStreamRegistry::StreamPtr MakeStream(int64_t connection, NodeSink* sink,
                                                  absl::uint128 process = kProcess) {
    return std::make_shared<NodeStreamRegistry::Stream>(
        NodeStreamRegistry::Stream{.node = 1,
                                   .incarnation = process,
                                   .connection = connection,
                                   .peer = absl::StrCat("connection ", connection),
                                   .sink = sink});
  }
  // Continues the first stream on the second one.
  std::future<absl::Status> StartGoingOn(NodeStreamRegistry& streams) {
    auto going_on = std::async(std::launch::async, [this, &streams] { return streams.Resume(second_); });
    while (first_sink_.listener.moves().empty()) std::this_thread::yield();
    return going_on;
  }

  // Joins another process with the same node number.
  std::future<absl::Status> StartJoining(NodeStreamRegistry& streams) {
    return std::async(std::launch::async, [this, &streams] { return streams.Join(other_, 1); });
  }
  static void AwaitProbe(const StoppableSink& sink) {
    while (sink.probes == 0) std::this_thread::yield();
  }

  Coordinator coordinator_{2};
  NodeStreamRegistry streams_{&coordinator_, {.probe_timeout = absl::InfiniteDuration()}};
  RecordingListener zero_;
  StoppableSink first_sink_;
  StoppableSink second_sink_;
  const NodeStreamRegistry::StreamPtr first_ = MakeStream(1, &first_sink_);
  StoppableSink other_sink_;
  const NodeStreamRegistry::StreamPtr second_ = MakeStream(2, &second_sink_);
  const NodeStreamRegistry::StreamPtr other_ = MakeStream(1, &other_sink_, kProcess + 1);
};

TEST_F(NodeStreamRegistryTest, ANodeGoesOnWithAnotherStreamWhenAllIsReadOnTheOldOne) {
  std::future<absl::Status> going_on = StartGoingOn(streams_);
  EXPECT_THAT(first_sink_.listener.moves(), ElementsAre(2));
  EXPECT_THAT(second_sink_.listener.welcomes(), ElementsAre(2));
  EXPECT_EQ(going_on.wait_for(std::chrono::seconds(0)), std::future_status::timeout) << "not all is read";
  streams_.End(*first_, /*is_moved=*/true);
  EXPECT_OK(going_on.get());
  EXPECT_TRUE(zero_.empty()) << "the epoch goes on";
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = 1, .why = absl::AbortedError("rank 0 left")}));
  EXPECT_EQ(second_sink_.listener.Next().epoch, 1);
  EXPECT_TRUE(first_sink_.listener.empty());
  EXPECT_FALSE(first_sink_.is_stopped);
  streams_.End(*second_, /*is_moved=*/false);
  EXPECT_THAT(AbsentNodes(coordinator_), ElementsAre(1));
}

TEST_F(NodeStreamRegistryTest, AnOldStreamThatBreaksBeforeAllIsReadTakesTheNewOneAlong) {
  std::future<absl::Status> going_on = StartGoingOn(streams_);
  streams_.End(*first_, /*is_moved=*/false);
  EXPECT_THAT(going_on.get(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("connection 1 broke")));
  EXPECT_THAT(zero_.Next().why, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 1 (rank 2) lost")));
  EXPECT_THAT(AbsentNodes(coordinator_), ElementsAre(1));
}

TEST_F(NodeStreamRegistryTest, AnOldStreamThatDoesNotEndIsEnded) {
  NodeStreamRegistry impatient(&coordinator_, {.end_timeout = absl::ZeroDuration()});
  streams_.End(*first_, /*is_moved=*/false);
  const NodeStreamRegistry::StreamPtr first = MakeStream(1, &first_sink_);
  ASSERT_OK(impatient.Join(first, 1));
  EXPECT_THAT(impatient.Resume(second_), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("join again")));
  EXPECT_TRUE(first_sink_.is_stopped);
  EXPECT_THAT(AbsentNodes(coordinator_), ElementsAre(1));
  impatient.End(*first, /*is_moved=*/false);
}

TEST_F(NodeStreamRegistryTest, AStreamWithoutOneBeforeItDoesNotResume) {
  for (const NodeStreamRegistry::StreamPtr& stream :
       {MakeStream(2, &second_sink_, kProcess + 1), MakeStream(1, &second_sink_), MakeStream(2, &second_sink_, 0)}) {
    EXPECT_THAT(streams_.Resume(stream), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("join again")));
  }
  EXPECT_THAT(first_sink_.listener.moves(), IsEmpty());
  EXPECT_THAT(AbsentNodes(coordinator_), IsEmpty());
  streams_.End(*first_, /*is_moved=*/false);
  EXPECT_THAT(streams_.Resume(second_), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(AbsentNodes(coordinator_), ElementsAre(1));
}

TEST_F(NodeStreamRegistryTest, AStreamThatItsProcessHasGivenUpMakesRoomForItsNextOne) {
  auto joining = std::async(std::launch::async, [this] { return streams_.Join(second_, 1); });
  while (!first_sink_.is_stopped) std::this_thread::yield();
  streams_.End(*first_, /*is_moved=*/false);
  EXPECT_OK(joining.get());
  EXPECT_THAT(zero_.Next().why, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("lost")));
  EXPECT_THAT(AbsentNodes(coordinator_), IsEmpty());
}

TEST_F(NodeStreamRegistryTest, AnotherProcessHasNoRoomWhileTheOneBeforeAnswers) {
  auto joining = StartJoining(streams_);
  AwaitProbe(first_sink_);
  streams_.TakeProbeAnswer(*first_);
  EXPECT_THAT(joining.get(),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("has this node number, connection 1")));
  EXPECT_FALSE(first_sink_.is_stopped);
  EXPECT_THAT(AbsentNodes(coordinator_), IsEmpty());
}

TEST_F(NodeStreamRegistryTest, AnotherProcessTakesThePlaceOfOneThatDoesNotAnswer) {
  NodeStreamRegistry impatient(&coordinator_, {.probe_timeout = absl::ZeroDuration()});
  EXPECT_TRUE(streams_.End(*first_, /*is_moved=*/false));
  const NodeStreamRegistry::StreamPtr first = MakeStream(1, &first_sink_);
  ASSERT_OK(impatient.Join(first, 1));
  auto joining = StartJoining(impatient);
  while (!first_sink_.is_stopped) std::this_thread::yield();
  EXPECT_TRUE(impatient.End(*first, /*is_moved=*/false));
  EXPECT_OK(joining.get());
  EXPECT_THAT(AbsentNodes(coordinator_), IsEmpty());
}

TEST_F(NodeStreamRegistryTest, AProcessThatGoesOnMeanwhileIsAskedAgain) {
  auto joining = StartJoining(streams_);
  AwaitProbe(first_sink_);
  std::future<absl::Status> going_on = StartGoingOn(streams_);
  EXPECT_FALSE(streams_.End(*first_, /*is_moved=*/true));
  EXPECT_OK(going_on.get());
  AwaitProbe(second_sink_);
  streams_.TakeProbeAnswer(*second_);
  EXPECT_THAT(joining.get(), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("connection 2")));
  EXPECT_TRUE(zero_.empty()) << "the epoch goes on";
}

TEST_F(NodeStreamRegistryTest, NothingGoesOnWhenTheCoordinatorHasStopped) {
  coordinator_.Stop();
  EXPECT_THAT(streams_.Resume(second_), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(first_sink_.listener.moves(), IsEmpty());
}

}  // namespace
}  // namespace paramshard::server
