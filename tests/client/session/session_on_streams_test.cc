// Session in memory of a GPU: what is enqueued, and in which order. The GPU is a fake that runs when it is told to.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "client/internal/session.h"
#include "gmock/gmock.h"
#include "tests/client/session/fake_epoch.h"
#include "tests/client/session/fake_gpu.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::internal {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SessionOnStreamsTest : public testing::Test {
 protected:
  void Attach(FakeEpochOptions options = {}) {
    options.gpu_uuid = kFakeGpuUuid;
    options.map_tensors = gpu_.Mapper();
    session_ = nullptr;
    epoch_ = std::make_unique<FakeEpoch>(ThreeUnits(), options);
    ASSERT_OK_AND_ASSIGN(session_, epoch_->Attach());
    EXPECT_EQ(session_->gpu(), kFakeGpu);
  }

  // The newest command.
  v1::Command LastCommand() {
    while (std::optional<v1::Command> command = epoch_->NextCommand()) last_ = *std::move(command);
    return last_;
  }
  void PublishReady() { epoch_->PublishReady(LastCommand()); }
  void FillPlanes(uint8_t value) { std::fill_n(epoch_->planes(), epoch_->layout().arena_bytes(0), value); }
  // The rows of this rank, 0 of 2, in a unit's matrix.
  absl::Span<const uint8_t> OwnData(const GatherTicket& ticket) {
    const absl::Span<const uint8_t> data = session_->gathers().Bytes(ticket, 0, Plane::kRowWise).data;
    return data.subspan(0, data.size() / 2);
  }
  uint32_t Released(int slot) const { return epoch_->words().released(slot).value; }

  // A kernel: runs from now until the test says so.
  void HoldUp(GpuStream stream) {
    gpu_.Enqueue(stream, [this] { return kernel_ended_; });
  }

  FakeGpu gpu_;
  const GpuStream stream_ = gpu_.NewStream();
  const GpuStream other_stream_ = gpu_.NewStream();
  bool kernel_ended_ = false;
  std::unique_ptr<FakeEpoch> epoch_;
  std::shared_ptr<Session> session_;
  v1::Command last_;
};

// --- Memory that cannot be mapped

// A wrong GPU, or a descriptor that is no memory of one, is for the mapper to tell.
TEST(SessionMemoryTest, WhatCannotBeMappedIsRefusedAndLeavesNothing) {
  const absl::Status refusal = absl::FailedPreconditionError("session memory: wrong GPU");
  FakeEpochOptions options;
  options.gpu_uuid = kFakeGpuUuid;
  options.map_tensors = [&](absl::string_view uuid, const TensorMemoryParts& parts) {
    EXPECT_EQ(uuid, kFakeGpuUuid);
    EXPECT_GE(parts.memory->planes.get(), 0);
    return absl::StatusOr<std::unique_ptr<TensorMemory>>(refusal);
  };
  FakeEpoch epoch(ThreeUnits(), options);
  int64_t descriptors = 0;
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(epoch.Attach().status(), refusal);
    if (attempt == 0) descriptors = OpenDescriptors();
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
}

// --- The calls of the host, in memory of a GPU

TEST_F(SessionOnStreamsTest, TheHostsWaitLandsPiecesAndPutsScalesTogether) {
  Attach();
  FillPlanes(0x5a);
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  PublishReady();
  ASSERT_OK(session_->gathers().Await(ticket));
  EXPECT_THAT(gpu_.TakeLog(), ElementsAre("copy 2", "copy 2"));
  EXPECT_THAT(OwnData(ticket), Each(0x5a));
  const PlaneBytes bytes = session_->gathers().Bytes(ticket, 0, Plane::kRowWise);
  ASSERT_THAT(bytes.scales, SizeIs(1));
  EXPECT_EQ(bytes.scales[0].size(), 64);
  EXPECT_THAT(bytes.scales[0].subspan(0, 32), Each(0x5a));
  EXPECT_THAT(bytes.scales[0].subspan(32), Each(0));
}

TEST_F(SessionOnStreamsTest, TheHostsGradientsAreZeroOnReturn) {
  Attach();
  std::fill_n(epoch_->slots(), epoch_->layout().slots_bytes(), 0xff);
  ASSERT_OK_AND_ASSIGN(const GradientTicket ticket, session_->gradients().Take("b"));
  const GradientView view = session_->gradients().View(ticket, 0);
  EXPECT_EQ(view.gpu, kFakeGpu);
  EXPECT_THAT(view.data, Each(0));
  ASSERT_OK(session_->gradients().Push(ticket, {}));
  gpu_.Run();
  EXPECT_EQ(epoch_->words().filled(0).value, 1);
}

// A copy of the trainer's own, or a kernel, that is under way when the host's calls return.
TEST_F(SessionOnStreamsTest, TheHostsPushComesAfterTheDefaultStream) {
  Attach({.client_lands_own_gradients = true});
  ASSERT_OK_AND_ASSIGN(const GradientTicket ticket, session_->gradients().Take("b"));
  const absl::Span<uint8_t> data = session_->gradients().View(ticket, 0).data;
  HoldUp(gpu_.default_stream());
  gpu_.Enqueue(gpu_.default_stream(), [=] { return std::fill(data.begin(), data.end(), 0x11), true; });
  ASSERT_OK(session_->gradients().Push(ticket, {}));
  gpu_.Run();
  EXPECT_EQ(epoch_->words().filled(0).value, 0);
  kernel_ended_ = true;
  gpu_.Run();
  EXPECT_EQ(epoch_->words().filled(0).value, 1);
  // Own rows landed after it too.
  const int64_t landed = epoch_->layout().slots_bytes() + epoch_->layout().units()[1].parameters[0].landing_offset;
  EXPECT_EQ(epoch_->slots()[landed], 0x11);
}

TEST_F(SessionOnStreamsTest, TheHostsReleaseComesAfterTheDefaultStream) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  PublishReady();
  ASSERT_OK(session_->gathers().Await(ticket));
  HoldUp(gpu_.default_stream());
  session_->gathers().Release(ticket);
  gpu_.Run();
  EXPECT_EQ(Released(0), 0);
  // The slot is free for the program, and what comes next there waits for its readers.
  ASSERT_OK_AND_ASSIGN(const GatherTicket next, session_->gathers().Gather("b", Phase::kForward));
  ASSERT_EQ(next.slot, ticket.slot);
  session_->gathers().Release(next);
  gpu_.Run();
  EXPECT_EQ(Released(0), 0);
  kernel_ended_ = true;
  gpu_.Run();
  EXPECT_EQ(Released(0), next.number);
}

// While the trainer's kernels read one unit, the host already waits for the next.
TEST_F(SessionOnStreamsTest, TheHostsWaitDoesNotComeAfterItsReleases) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GatherTicket a, session_->gathers().Gather("a", Phase::kForward));
  PublishReady();
  ASSERT_OK_AND_ASSIGN(const GatherTicket b, session_->gathers().Gather("b", Phase::kForward));
  PublishReady();
  ASSERT_OK(session_->gathers().Await(a));
  HoldUp(gpu_.default_stream());
  session_->gathers().Release(a);
  EXPECT_OK(session_->gathers().Await(b));
  EXPECT_EQ(Released(a.slot), 0);
}

TEST_F(SessionOnStreamsTest, ASlotThatTheHostGaveBackIsZeroedAfterTheDefaultStream) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GradientTicket first, session_->gradients().Take("a"));
  const GradientView view = session_->gradients().View(first, 0);
  HoldUp(gpu_.default_stream());
  gpu_.Enqueue(gpu_.default_stream(), [=] { return std::fill(view.data.begin(), view.data.end(), 0xff), true; });
  session_->gradients().GiveBack(first);
  ASSERT_OK_AND_ASSIGN(const GradientTicket second, session_->gradients().Take("a", stream_));
  ASSERT_EQ(second.slot, first.slot);
  gpu_.Run();
  EXPECT_FALSE(gpu_.Idle(stream_));
  kernel_ended_ = true;
  gpu_.Run();
  EXPECT_THAT(view.data, Each(0));
}

// One wait, one copy and one word, whatever lands.
TEST_F(SessionOnStreamsTest, ValuesAreCopiedByTheStreamAndTheHostGoesOn) {
  Attach({.client_lands_own_gradients = true});
  const std::vector<float> w(64 * 32, 3.0f), bias(64, 4.0f);
  ASSERT_OK(session_->gradients().PushValues("a", {w.data(), bias.data()}, stream_));
  ASSERT_OK(session_->gradients().PushValues("a", {w.data(), bias.data()}, stream_));
  gpu_.TakeLog();
  ASSERT_OK(session_->gradients().PushValues("b", {w.data(), bias.data()}, stream_));
  EXPECT_THAT(gpu_.TakeLog(), ElementsAre("await", "copy gradients 3", "write"));
  gpu_.Run();
  EXPECT_EQ(epoch_->words().filled(0).value, 1) << "the daemon still reads the slot";
  LastCommand();
  epoch_->words().Publish(epoch_->words().drained(0), 1);
  gpu_.Run();
  EXPECT_EQ(epoch_->words().filled(0).value, 3);
  EXPECT_TRUE(last_.push().own_slices_landed());
  const int64_t landed = epoch_->layout().slots_bytes() + epoch_->layout().units()[1].parameters[0].landing_offset;
  EXPECT_EQ(*reinterpret_cast<const float*>(epoch_->slots() + landed), 3.0f);
}

TEST_F(SessionOnStreamsTest, ValuesInMemoryOfAGpuRequireAStream) {
  Attach();
  const std::vector<float> w(64 * 32), bias(64);
  EXPECT_THAT(session_->gradients().PushValues("a", {w.data(), bias.data()}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("require a stream")));
}

// --- Gathers on streams

TEST_F(SessionOnStreamsTest, AStreamWaitsForAllPieces) {
  Attach();
  FillPlanes(0x5a);
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  ASSERT_OK(session_->gathers().Await(ticket, stream_));
  EXPECT_THAT(gpu_.TakeLog(), ElementsAre("copy 2", "await", "copy 2"));
  EXPECT_THAT(OwnData(ticket), Each(0));
  gpu_.Run();
  EXPECT_THAT(OwnData(ticket), Each(0x5a));
  EXPECT_FALSE(gpu_.Idle(stream_));
  PublishReady();
  gpu_.Run();
  EXPECT_TRUE(gpu_.Idle(stream_));
  EXPECT_THAT(session_->gathers().Bytes(ticket, 0, Plane::kRowWise).scales[0].subspan(0, 32), Each(0x5a));
}

TEST_F(SessionOnStreamsTest, WordsThatAreThereAreNotAwaited) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  PublishReady();
  ASSERT_OK(session_->gathers().Await(ticket, stream_));
  EXPECT_THAT(gpu_.TakeLog(), ElementsAre("copy 2", "copy 2"));
}

TEST_F(SessionOnStreamsTest, OwnPiecesAreCopiedAfterTheCommitThatWritesThem) {
  Attach({.prefetch = false});
  ASSERT_OK(session_->Commit({}));
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  PublishReady();
  ASSERT_OK(session_->gathers().Await(ticket, stream_));
  gpu_.Run();
  FillPlanes(0x5a);
  EXPECT_THAT(OwnData(ticket), Each(0));
  epoch_->PublishCommitted(1, 1);
  gpu_.Run();
  EXPECT_THAT(OwnData(ticket), Each(0x5a));
}

TEST_F(SessionOnStreamsTest, AStreamWaitsOnceForACommit) {
  Attach({.ranks = 1, .prefetch = false});
  const auto log_of_gather = [&](GpuStream stream) {
    auto ticket = session_->gathers().Gather("a", Phase::kForward);
    EXPECT_OK(ticket);
    EXPECT_OK(session_->gathers().Await(*ticket, stream));
    EXPECT_OK(session_->gathers().ReleaseOn(*ticket, stream));
    return gpu_.TakeLog();
  };
  ASSERT_OK(session_->Commit({}));
  EXPECT_THAT(log_of_gather(stream_), ElementsAre("await", "write"));
  EXPECT_THAT(log_of_gather(stream_), ElementsAre("write"));
  EXPECT_THAT(log_of_gather(other_stream_), Contains("await"));
  ASSERT_OK(session_->Commit({}));
  EXPECT_THAT(log_of_gather(other_stream_), Contains("await"));
}

TEST_F(SessionOnStreamsTest, AGroupOfOneWaitsForTheCommitAlone) {
  Attach({.ranks = 1, .prefetch = false});
  FillPlanes(0x5a);
  ASSERT_OK(session_->Commit({}));
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  ASSERT_OK(session_->gathers().Await(ticket, stream_));
  EXPECT_THAT(gpu_.TakeLog(), ElementsAre("await"));
  const PlaneBytes bytes = session_->gathers().Bytes(ticket, 0, Plane::kRowWise);
  EXPECT_THAT(bytes.data, Each(0x5a));
  ASSERT_THAT(bytes.scales, SizeIs(1));
  EXPECT_THAT(bytes.scales[0], Each(0x5a));
}

TEST_F(SessionOnStreamsTest, WhenTheEngineLandsEveryPieceOnlyScalesAreCopied) {
  Attach({.client_lands_own_pieces = false});
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  ASSERT_OK(session_->gathers().Await(ticket, stream_));
  EXPECT_THAT(gpu_.TakeLog(), ElementsAre("await", "await", "copy 2"));
}

TEST_F(SessionOnStreamsTest, InASlotWithPiecesUnderWayOwnOnesLandLast) {
  Attach();
  FillPlanes(0x5a);
  ASSERT_OK_AND_ASSIGN(const GatherTicket a, session_->gathers().Gather("a", Phase::kForward));
  session_->gathers().Release(a);
  ASSERT_OK_AND_ASSIGN(const GatherTicket b, session_->gathers().Gather("b", Phase::kForward));
  ASSERT_EQ(b.slot, a.slot);
  ASSERT_OK(session_->gathers().Await(b, stream_));
  EXPECT_THAT(gpu_.TakeLog(), ElementsAre("await", "copy 2", "copy 2"));
  gpu_.Run();
  EXPECT_THAT(OwnData(b), Each(0));
  PublishReady();
  gpu_.Run();
  EXPECT_THAT(OwnData(b), Each(0x5a));
}

TEST_F(SessionOnStreamsTest, AReleaseIsSeenWhenTheStreamHasComeToIt) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  ASSERT_OK(session_->gathers().Await(ticket, stream_));
  ASSERT_OK(session_->gathers().ReleaseOn(ticket, stream_));
  gpu_.Run();
  EXPECT_EQ(Released(0), 0);
  // For the trainer's program the slot is free, and nothing is held.
  EXPECT_OK(session_->Commit({}));
  epoch_->words().Publish(epoch_->words().ready(0, 1), 1);
  gpu_.Run();
  EXPECT_EQ(Released(0), 1);
}

TEST_F(SessionOnStreamsTest, ASlotIsNotOverwrittenWhileAnotherStreamReadsIt) {
  for (const bool by_host : {false, true}) {
    Attach();
    kernel_ended_ = false;
    ASSERT_OK_AND_ASSIGN(const GatherTicket a, session_->gathers().Gather("a", Phase::kForward));
    PublishReady();
    ASSERT_OK(session_->gathers().Await(a, stream_));
    HoldUp(stream_);
    ASSERT_OK(session_->gathers().ReleaseOn(a, stream_));
    gpu_.Run();
    FillPlanes(0x5a);
    ASSERT_OK_AND_ASSIGN(const GatherTicket b, session_->gathers().Gather("b", Phase::kForward));
    ASSERT_EQ(b.slot, a.slot);
    PublishReady();
    if (by_host) {
      EXPECT_THAT(session_->gathers().Await(b), StatusIs(absl::StatusCode::kDeadlineExceeded));
    } else {
      ASSERT_OK(session_->gathers().Await(b, other_stream_));
    }
    gpu_.Run();
    EXPECT_THAT(OwnData(b), Each(0));
    kernel_ended_ = true;
    gpu_.Run();
    EXPECT_THAT(OwnData(b), Each(0x5a));
  }
}

TEST_F(SessionOnStreamsTest, AStreamDoesNotWaitForItself) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GatherTicket a, session_->gathers().Gather("a", Phase::kForward));
  PublishReady();
  ASSERT_OK(session_->gathers().Await(a, stream_));
  ASSERT_OK(session_->gathers().ReleaseOn(a, stream_));
  ASSERT_OK_AND_ASSIGN(const GatherTicket b, session_->gathers().Gather("b", Phase::kForward));
  PublishReady();
  gpu_.TakeLog();
  ASSERT_OK(session_->gathers().Await(b, stream_));
  EXPECT_THAT(gpu_.TakeLog(), ElementsAre("copy 2", "copy 2"));
}

// The host releases a unit that was gathered ahead in vain, in a slot that a stream still reads.
TEST_F(SessionOnStreamsTest, TheHostsReleaseDoesNotOvertakeAStreams) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GatherTicket a, session_->gathers().Gather("a", Phase::kForward));
  PublishReady();
  ASSERT_OK(session_->gathers().Await(a, stream_));
  HoldUp(stream_);
  ASSERT_OK(session_->gathers().ReleaseOn(a, stream_));
  ASSERT_OK_AND_ASSIGN(const GatherTicket b, session_->gathers().Gather("b", Phase::kForward));
  session_->gathers().Release(b);
  gpu_.Run();
  EXPECT_EQ(Released(0), 0);
  kernel_ended_ = true;
  gpu_.Run();
  EXPECT_EQ(Released(0), b.number);
  ASSERT_OK_AND_ASSIGN(const GatherTicket c, session_->gathers().Gather("c", Phase::kForward));
  session_->gathers().Release(c);
  EXPECT_EQ(Released(0), c.number);
}

TEST_F(SessionOnStreamsTest, AnotherStreamFollowsTheFirstWithoutItsLaterWork) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GatherTicket a, session_->gathers().Gather("a", Phase::kForward));
  ASSERT_OK(session_->gathers().Await(a, stream_));
  HoldUp(stream_);
  ASSERT_OK(session_->gathers().Follow(a, other_stream_));
  gpu_.Run();
  EXPECT_FALSE(gpu_.Idle(other_stream_));
  PublishReady();
  gpu_.Run();
  EXPECT_TRUE(gpu_.Idle(other_stream_));
  EXPECT_FALSE(gpu_.Idle(stream_));
}

// --- Gradients on streams

TEST_F(SessionOnStreamsTest, APushIsFilledWhenTheStreamHasComeToIt) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GradientTicket ticket, session_->gradients().Take("b", stream_));
  HoldUp(stream_);
  ASSERT_OK(session_->gradients().Push(ticket, {1}, stream_));
  EXPECT_EQ(LastCommand().push().unit(), 1);
  gpu_.Run();
  EXPECT_EQ(epoch_->words().filled(0).value, 0);
  kernel_ended_ = true;
  gpu_.Run();
  EXPECT_EQ(epoch_->words().filled(0).value, 1);
}

TEST_F(SessionOnStreamsTest, OwnGradientsLandAfterTheCommitThatReadsThoseBefore) {
  Attach({.client_lands_own_gradients = true});
  ASSERT_OK_AND_ASSIGN(const GradientTicket first, session_->gradients().Take("b", stream_));
  gpu_.TakeLog();
  ASSERT_OK(session_->gradients().Push(first, {}, stream_));
  EXPECT_THAT(gpu_.TakeLog(), ElementsAre("copy 1", "write"));
  ASSERT_OK_AND_ASSIGN(const int64_t number, session_->Commit({}));
  ASSERT_OK_AND_ASSIGN(const GradientTicket second, session_->gradients().Take("b", stream_));
  gpu_.TakeLog();
  ASSERT_OK(session_->gradients().Push(second, {}, stream_));
  EXPECT_THAT(gpu_.TakeLog(), ElementsAre("await", "copy 1", "write"));
  gpu_.Run();
  EXPECT_EQ(epoch_->words().filled(second.slot).value, 0);
  epoch_->PublishCommitted(number, number);
  gpu_.Run();
  EXPECT_EQ(epoch_->words().filled(second.slot).value, LastCommand().number());
}

TEST_F(SessionOnStreamsTest, OwnGradientsLandAfterThoseThatWereDiscarded) {
  Attach({.client_lands_own_gradients = true});
  ASSERT_OK_AND_ASSIGN(const GradientTicket first, session_->gradients().Take("b", stream_));
  ASSERT_OK(session_->gradients().Push(first, {}, stream_));
  const v1::Command dropped = LastCommand();
  ASSERT_OK(session_->Discard());
  ASSERT_OK_AND_ASSIGN(const GradientTicket second, session_->gradients().Take("b", stream_));
  gpu_.TakeLog();
  ASSERT_OK(session_->gradients().Push(second, {}, stream_));
  EXPECT_THAT(gpu_.TakeLog(), ElementsAre("await", "copy 1", "write"));
  gpu_.Run();
  EXPECT_EQ(epoch_->words().filled(second.slot).value, 0);
  epoch_->PublishDrained(dropped);
  gpu_.Run();
  EXPECT_EQ(epoch_->words().filled(second.slot).value, LastCommand().number());
}

TEST_F(SessionOnStreamsTest, ASlotIsZeroedWhenItHasDrained) {
  Attach();
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(const GradientTicket ticket, session_->gradients().Take("b", stream_));
    ASSERT_OK(session_->gradients().Push(ticket, {}, stream_));
  }
  gpu_.TakeLog();
  ASSERT_OK_AND_ASSIGN(const GradientTicket ticket, session_->gradients().Take("a", stream_));
  EXPECT_EQ(ticket.slot, 0);
  EXPECT_THAT(gpu_.TakeLog(), ElementsAre("await", "zero"));
  gpu_.Run();
  std::fill_n(session_->gradients().View(ticket, 0).data.data(), 100, 0xff);
  EXPECT_FALSE(gpu_.Idle(stream_));
  epoch_->words().Publish(epoch_->words().drained(0), 1);
  gpu_.Run();
  EXPECT_THAT(session_->gradients().View(ticket, 0).data, Each(0));
}

TEST_F(SessionOnStreamsTest, ASlotThatNeedNotBeZeroedOnlyDrains) {
  Attach();
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(const GradientTicket ticket, session_->gradients().Take("b", stream_));
    ASSERT_OK(session_->gradients().Push(ticket, {}, stream_));
  }
  gpu_.TakeLog();
  ASSERT_OK(session_->gradients().Take("a", stream_, /*zeroed=*/false));
  EXPECT_THAT(gpu_.TakeLog(), ElementsAre("await"));
}

TEST_F(SessionOnStreamsTest, ASlotThatWasGivenBackIsZeroedAfterItsStream) {
  for (const bool by_host : {false, true}) {
    Attach();
    kernel_ended_ = false;
    ASSERT_OK_AND_ASSIGN(const GradientTicket first, session_->gradients().Take("a", stream_));
    HoldUp(stream_);
    gpu_.Run();
    session_->gradients().GiveBack(first, stream_);
    if (by_host) {
      EXPECT_THAT(session_->gradients().Take("a"), StatusIs(absl::StatusCode::kDeadlineExceeded));
    } else {
      ASSERT_OK(session_->gradients().Take("a", other_stream_));
    }
    const GradientView view = session_->gradients().View(first, 0);
    std::fill_n(view.data.data(), view.data.size(), 0xff);
    gpu_.Run();
    EXPECT_THAT(view.data, Each(0xff));
    kernel_ended_ = true;
    gpu_.Run();
    EXPECT_THAT(view.data, Each(0));
  }
}

// --- The end

TEST_F(SessionOnStreamsTest, TheEndWakesEveryStreamAndIsTold) {
  Attach({.prefetch = false});
  ASSERT_OK(session_->Commit({}));
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  ASSERT_OK(session_->gathers().Await(ticket, stream_));
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const GradientTicket gradients, session_->gradients().Take("b", other_stream_));
    ASSERT_OK(session_->gradients().Push(gradients, {}, other_stream_));
  }
  gpu_.Run();
  EXPECT_FALSE(gpu_.Idle(stream_));
  EXPECT_FALSE(gpu_.Idle(other_stream_));
  epoch_->words().Finish(wire::Side::kDaemon, static_cast<uint32_t>(absl::StatusCode::kAborted), "rank 1 has left");
  gpu_.Run();
  EXPECT_TRUE(gpu_.Idle(stream_));
  EXPECT_TRUE(gpu_.Idle(other_stream_));
  const auto is_end = StatusIs(absl::StatusCode::kAborted, "rank 1 has left");
  EXPECT_THAT(session_->status(), is_end);
  gpu_.TakeLog();
  EXPECT_THAT(session_->gathers().Await(ticket, stream_), is_end);
  EXPECT_THAT(session_->gathers().Follow(ticket, other_stream_), is_end);
  EXPECT_THAT(session_->gradients().Take("b", stream_), is_end);
  EXPECT_THAT(gpu_.TakeLog(), IsEmpty());
  ASSERT_OK(session_->gathers().ReleaseOn(ticket, stream_));
}

// The daemon is killed when it has said that the epoch has ended, and before it has woken any waiter.
TEST_F(SessionOnStreamsTest, AnEndThatADeadDaemonLeftHalfDoneIsCompleted) {
  Attach();
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session_->gathers().Gather("a", Phase::kForward));
  ASSERT_OK(session_->gathers().Await(ticket, stream_));
  gpu_.Run();
  EXPECT_FALSE(gpu_.Idle(stream_));
  epoch_->words().status().value = static_cast<uint32_t>(absl::StatusCode::kAborted);
  epoch_->KillDaemon();
  // No call is made: the watch alone ends the page.
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (!gpu_.Idle(stream_) && absl::Now() < end) gpu_.Run();
  EXPECT_TRUE(gpu_.Idle(stream_));
  EXPECT_THAT(session_->status(), StatusIs(absl::StatusCode::kAborted));
}

// --- Where the memory is

TEST(SessionMemoryTest, InHostMemoryThereAreNoStreams) {
  FakeEpoch epoch(ThreeUnits(), {});
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Session> session, epoch.Attach());
  EXPECT_EQ(session->gpu(), -1);
  const auto is_refused = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("want a session with a GPU"));
  ASSERT_OK_AND_ASSIGN(const GatherTicket ticket, session->gathers().Gather("a", Phase::kForward));
  EXPECT_THAT(session->gathers().Await(ticket, nullptr), is_refused);
  EXPECT_THAT(session->gathers().ReleaseOn(ticket, nullptr), is_refused);
  EXPECT_EQ(epoch.words().released(0).value, ticket.number);
  EXPECT_THAT(session->gradients().Take("a", nullptr), is_refused);
  ASSERT_OK_AND_ASSIGN(const GradientTicket gradients, session->gradients().Take("a"));
  EXPECT_THAT(session->gradients().Push(gradients, {}, GpuStream{nullptr}), is_refused);
}

TEST(SessionMemoryTest, AGpuThatThisProcessDoesNotSeeIsNamed) {
  FakeEpoch epoch(ThreeUnits(), {.gpu_uuid = kFakeGpuUuid});
#ifdef PARAMSHARD_HAS_CUDA
  EXPECT_THAT(epoch.Attach(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       AllOf(HasSubstr("want GPU-30313233-3435-3637-3839-616263646566"),
                                             HasSubstr("CUDA_VISIBLE_DEVICES"))));
#else
  EXPECT_THAT(epoch.Attach(), StatusIs(absl::StatusCode::kUnimplemented,
                                       "the daemon's memory is on a GPU; this client was built without CUDA"));
#endif
}

TEST(SessionMemoryTest, AUuidHasSixteenBytes) {
  FakeEpoch epoch(ThreeUnits(), {.gpu_uuid = "short"});
  EXPECT_THAT(epoch.Attach(), StatusIs(absl::StatusCode::kInternal, HasSubstr("want a GPU's UUID of 16 bytes, got 5")));
}

}  // namespace
}  // namespace paramshard::internal
