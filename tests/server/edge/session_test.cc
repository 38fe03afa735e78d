// TrainerService.Session: attaching, what is said in which order, and every way to leave.

#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/edge/test_session.h"
#include "tests/server/state/test_spec.h"
#include "tests/server/training/command.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SessionTest : public DaemonTestBase {
 protected:
  SessionTest() {
    EXPECT_OK(client_->CreateModel(
        MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {8, 4})}), MakeUnit("v", {MakeParameter("x", {8, 4})})})));
  }

  std::unique_ptr<TestSession> Open() { return std::make_unique<TestSession>(socket_dir()); }
  std::unique_ptr<TestSession> Attach(int rank) {
    std::unique_ptr<TestSession> session = Open();
    session->Attach(MakeAttach("m", rank));
    return session;
  }
  // Returns the status of a session that begins with `attach`, and closes at its end.
  absl::Status EndOf(const v1::AttachRequest& attach) {
    const std::unique_ptr<TestSession> session = Open();
    session->Attach(attach);
    session->AwaitEnded();
    session->HalfClose();
    return session->Finish();
  }
  // Both ranks, in an epoch.
  void StartEpoch() {
    first_ = Attach(0);
    second_ = Attach(1);
    ASSERT_TRUE(first_->AwaitStarted());
    ASSERT_TRUE(second_->AwaitStarted());
  }

  std::unique_ptr<TestSession> first_, second_;
};

// --- Attaching ---

TEST_F(SessionTest, AcceptedNamesWhoIsMissing) {
  const auto first = Attach(1);
  const v1::SessionResponse response = first->Read();
  ASSERT_TRUE(response.has_accepted());
  EXPECT_GT(response.accepted().session(), 0);
  EXPECT_THAT(response.accepted().missing_ranks(), ElementsAre(0));
  const auto second = Attach(0);
  const v1::SessionResponse last = second->Read();
  ASSERT_TRUE(last.has_accepted());
  EXPECT_GT(last.accepted().session(), response.accepted().session());
}

TEST_F(SessionTest, StartedFollowsOnEverySession) {
  const auto first = Attach(0);
  const auto second = Attach(1);
  for (int rank : {0, 1}) {
    TestSession& session = rank == 0 ? *first : *second;
    ASSERT_TRUE(session.Read().has_accepted());
    const v1::SessionResponse response = session.Read();
    ASSERT_TRUE(response.has_started());
    EXPECT_EQ(response.started().epoch(), 1);
    EXPECT_EQ(response.started().group_rank(), rank);
    EXPECT_EQ(response.started().world_size(), 2);
    EXPECT_EQ(response.started().spec().name(), "m");
    // The memory came before.
    ASSERT_OK_AND_ASSIGN(const wire::CompanionPacket packet,
                         session.client().companion().Receive(absl::ZeroDuration()));
    EXPECT_OK(wire::ParseCompanionPacket<wire::CompanionMemory>(packet, wire::CompanionKind::kMemory, 3));
  }
}

TEST_F(SessionTest, AnUnknownModelIsNotFound) {
  EXPECT_THAT(EndOf(MakeAttach("x", 0)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("not found; this daemon holds [m]")));
}

TEST_F(SessionTest, ARankOfAnotherDaemonIsRefused) {
  for (int rank : {-1, 2, INT32_MAX}) {
    EXPECT_THAT(EndOf(MakeAttach("m", rank)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a rank in [0, 2)")));
  }
}

TEST_F(SessionTest, TheFirstMessageIsAttach) {
  const auto session = Open();
  session->SendCommand(GatherCommand(1, 0, 0));
  EXPECT_THAT(session->Finish(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want attach as the first")));
  const auto silent = Open();
  silent->HalfClose();
  EXPECT_THAT(silent->Finish(), StatusIs(absl::StatusCode::kAborted, HasSubstr("closed before attach")));
}

TEST_F(SessionTest, ARankThatIsHeldIsRefusedWithItsPid) {
  const auto holder = Attach(0);
  ASSERT_TRUE(holder->Read().has_accepted());
  EXPECT_THAT(EndOf(MakeAttach("m", 0)), StatusIs(absl::StatusCode::kAlreadyExists,
                                                  AllOf(HasSubstr("rank 0"), HasSubstr(absl::StrCat(getpid())))));
}

TEST_F(SessionTest, AVacantRankMayBeTakenOver) {
  const auto session = Open();
  v1::AttachRequest attach = MakeAttach("m", 0);
  attach.set_take_over(true);
  session->Attach(attach);
  EXPECT_TRUE(session->Read().has_accepted());
}

TEST_F(SessionTest, WhoWaitsMayClose) {
  const auto session = Attach(0);
  ASSERT_TRUE(session->Read().has_accepted());
  session->HalfClose();
  EXPECT_OK(session->Finish());
  const auto broken = Attach(1);
  ASSERT_TRUE(broken->Read().has_accepted());
  broken->Cancel();
  // The daemon hears of it a moment later.
  do second_ = Attach(1);
  while (!second_->Read().has_accepted());
  first_ = Attach(0);
  EXPECT_TRUE(first_->AwaitStarted());
  EXPECT_TRUE(second_->Read().has_started());
}

TEST_F(SessionTest, ACallerHasOneSessionAtATime) {
  const auto session = Attach(0);
  const v1::SessionResponse response = session->Read();
  ASSERT_TRUE(response.has_accepted());
  const auto context = session->client().Context();
  const auto stream = session->client().trainer().Session(context.get());
  v1::SessionRequest request;
  *request.mutable_attach() = MakeAttach("m", 1);
  stream->Write(request);
  v1::SessionResponse none;
  EXPECT_FALSE(stream->Read(&none));
  EXPECT_THAT(FromGrpc(stream->Finish()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(absl::StrCat("serves session ", response.accepted().session()))));
}

TEST_F(SessionTest, AfterOneSessionTheCallerMayOpenTheNext) {
  const auto session = Attach(0);
  ASSERT_TRUE(session->Read().has_accepted());
  session->HalfClose();
  EXPECT_OK(session->Finish());
  session->Reopen();
  session->Attach(MakeAttach("m", 1));
  EXPECT_TRUE(session->Read().has_accepted());
}

TEST_F(SessionTest, WhoWaitsTooLongIsToldForWhom) {
  v1::AttachRequest attach = MakeAttach("m", 1);
  attach.mutable_attach_timeout()->set_nanos(1'000'000);
  EXPECT_THAT(EndOf(attach), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                      AllOf(HasSubstr("attach m: ranks 0 did not come within 1ms"))));
  StartEpoch();
}

TEST_F(SessionTest, ATimeToWaitIsNoNegativeOne) {
  v1::AttachRequest attach = MakeAttach("m", 1);
  attach.mutable_attach_timeout()->set_seconds(-5);
  EXPECT_THAT(EndOf(attach), StatusIs(absl::StatusCode::kInvalidArgument,
                                      AllOf(HasSubstr("0 <= attach_timeout"), HasSubstr("got -5s"))));
}

// Many callers: none holds a thread.
TEST_F(SessionTest, WhoNeverAttachesHoldsNoThreadAndIsSentAway) {
  const int64_t threads = OwnThreads();
  std::vector<std::unique_ptr<TestSession>> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(Open());
  StartEpoch();
  // The epoch has some.
  EXPECT_LT(OwnThreads(), threads + 10);
  for (const auto& session : silent) {
    EXPECT_THAT(session->Finish(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("without an attach")));
  }
}

// A caller may open as many streams as it likes: one is kept, and gRPC alone decides which of them comes first.
TEST_F(SessionTest, OfManySilentStreamsOfACallerOneIsKept) {
  const auto session = Open();
  struct Stream {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionResponse>> stream;
  };
  std::vector<Stream> others(10);
  for (Stream& other : others) {
    other.context = session->client().Context();
    other.stream = session->client().trainer().Session(other.context.get());
  }
  std::vector<absl::StatusCode> ends = {session->Finish().code()};
  for (Stream& other : others) ends.push_back(FromGrpc(other.stream->Finish()).code());
  EXPECT_THAT(ends, Each(AnyOf(absl::StatusCode::kFailedPrecondition, absl::StatusCode::kDeadlineExceeded)));
  EXPECT_THAT(ends, Contains(absl::StatusCode::kDeadlineExceeded).Times(1));
}

TEST_F(SessionTest, TheStreamEndsWithTheEpochAlthoughTheTrainerKeepsItOpen) {
  ASSERT_NO_FATAL_FAILURE(StartEpoch());
  first_->HalfClose();
  EXPECT_THAT(second_->AwaitEnded().why().text(), HasSubstr("rank 0"));
  EXPECT_THAT(second_->Finish(), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 0")));
}

TEST_F(SessionTest, ACommandThatNoRingWouldTakeEndsTheEpoch) {
  ASSERT_NO_FATAL_FAILURE(StartEpoch());
  first_->SendCommand(CommitCommand(1, 1, std::string(1 << 20, 's')));
  EXPECT_THAT(first_->AwaitEnded().why().text(), HasSubstr("want a command of at most 163840 bytes"));
}

// --- Leaving ---

TEST_F(SessionTest, WhoHalfClosesEndsTheEpochForAll) {
  ASSERT_NO_FATAL_FAILURE(StartEpoch());
  first_->HalfClose();
  EXPECT_OK(first_->Finish()) << "it gets what it asked for";
  const v1::EpochEnded ended = second_->AwaitEnded();
  EXPECT_EQ(ended.epoch(), 1);
  EXPECT_EQ(ended.why().code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_THAT(ended.why().text(), AllOf(HasSubstr("rank 0"), HasSubstr("resume from commit 0")));
  second_->HalfClose();
  EXPECT_THAT(second_->Finish(), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 0")));
}

TEST_F(SessionTest, WhoLosesItsCompanionConnectionIsGone) {
  ASSERT_NO_FATAL_FAILURE(StartEpoch());
  first_->client().CloseCompanion();
  const v1::EpochEnded ended = second_->AwaitEnded();
  EXPECT_EQ(ended.why().code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_THAT(ended.why().text(),
              AllOf(HasSubstr("rank 0"), HasSubstr(absl::StrCat("process ", getpid(), " exited or disconnected"))));
}

// A forked child may keep the dead trainer's stream open for ever.
TEST_F(SessionTest, ItsStreamEndsAlthoughNobodyClosesIt) {
  ASSERT_NO_FATAL_FAILURE(StartEpoch());
  first_->client().CloseCompanion();
  EXPECT_THAT(first_->Finish(), StatusIs(AnyOf(absl::StatusCode::kCancelled, absl::StatusCode::kAborted)));
}

TEST_F(SessionTest, AWaitingCallersStreamEndsToo) {
  const auto session = Attach(0);
  ASSERT_TRUE(session->Read().has_accepted());
  session->client().CloseCompanion();
  EXPECT_THAT(session->Finish(), StatusIs(AnyOf(absl::StatusCode::kCancelled, absl::StatusCode::kAborted)));
  // The rank is free again.
  StartEpoch();
}

TEST_F(SessionTest, ABrokenStreamIsADeparture) {
  ASSERT_NO_FATAL_FAILURE(StartEpoch());
  first_->Cancel();
  EXPECT_THAT(second_->AwaitEnded().why().text(), HasSubstr("rank 0"));
}

TEST_F(SessionTest, ASecondAttachEndsTheEpoch) {
  ASSERT_NO_FATAL_FAILURE(StartEpoch());
  first_->Attach(MakeAttach("m", 0));
  EXPECT_THAT(first_->Finish(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want a command or a detach")));
  EXPECT_THAT(second_->AwaitEnded().why().text(), HasSubstr("want a command or a detach"));
}

TEST_F(SessionTest, RanksThatDisagreeAreTold) {
  ASSERT_NO_FATAL_FAILURE(StartEpoch());
  first_->SendCommand(DiscardCommand(1));
  second_->SendCommand(CommitCommand(1, 1));
  for (TestSession* session : {first_.get(), second_.get()}) {
    const v1::EpochEnded ended = session->AwaitEnded();
    EXPECT_EQ(ended.why().code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
    EXPECT_THAT(ended.why().text(), AllOf(HasSubstr("rank 0 sent discard"), HasSubstr("rank 1 sent commit 1")));
    session->HalfClose();
    EXPECT_THAT(session->Finish(), StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  StartEpoch();
}

TEST_F(SessionTest, ACommandThatBreaksARuleIsInvalid) {
  ASSERT_NO_FATAL_FAILURE(StartEpoch());
  first_->SendCommand(PushCommand(1, 0, 99));
  EXPECT_THAT(first_->AwaitEnded().why().text(), HasSubstr("a gradient slot in"));
}

TEST_F(SessionTest, ACommandBeforeTheEpochEndsTheSessionAlone) {
  const auto early = Attach(0);
  ASSERT_TRUE(early->Read().has_accepted());
  early->SendCommand(GatherCommand(1, 0, 0));
  EXPECT_THAT(early->Finish(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        AllOf(HasSubstr("command 1 of rank 0"), HasSubstr("before `started`"))));
  StartEpoch();
}

// A command with all the client state that is allowed fits the stream.
TEST_F(SessionTest, CommitsByStreamAreAnswered) {
  ASSERT_NO_FATAL_FAILURE(StartEpoch());
  const std::string state(64 * 1024, 's');
  first_->SendCommand(CommitCommand(1, 1, state));
  second_->SendCommand(CommitCommand(1, 1, "other"));
  // The answer is in the words page; who comes next hears of it.
  v1::GetModelRequest request;
  request.set_model("m");
  int64_t commit_number = 0;
  for (const absl::Time end = absl::Now() + absl::Seconds(30); commit_number == 0 && absl::Now() < end;) {
    const auto model = client_->Call(client_->trainer(), &v1::TrainerService::Stub::GetModel, request);
    ASSERT_OK(model);
    commit_number = model->model().commit_number();
  }
  EXPECT_EQ(commit_number, 1);
  first_.reset();
  second_.reset();
  first_ = Attach(0);
  second_ = Attach(1);
  ASSERT_TRUE(first_->Read().has_accepted());
  const v1::SessionResponse started = first_->Read();
  EXPECT_EQ(started.started().commit_number(), 1);
  EXPECT_EQ(started.started().client_state(), state);
  EXPECT_EQ(started.started().last_commit().version(), 1);
}

// --- Trainers that do not read ---

class LargeModelTest : public DaemonTestBase {
 protected:
  // A layout of several megabytes, more than a connection holds for a reader that sleeps.
  LargeModelTest() {
    v1::UnitSpec unit = MakeUnit("u", {});
    for (int i = 0; i < 30'000; ++i) *unit.add_parameters() = MakeParameter(absl::StrCat(std::string(90, 'p'), i), {2});
    EXPECT_OK(client_->CreateModel(MakeSpec("m", {unit})));
  }
};

TEST_F(LargeModelTest, WhoDoesNotReadHoldsNobodyUp) {
  TestSession sleeper(socket_dir());
  TestSession reader(socket_dir());
  sleeper.Attach(MakeAttach("m", 0));
  reader.Attach(MakeAttach("m", 1));
  EXPECT_TRUE(reader.AwaitStarted());
  // It is noticed when it goes, too.
  sleeper.client().CloseCompanion();
  EXPECT_THAT(reader.AwaitEnded().why().text(), HasSubstr("rank 0"));
}

}  // namespace
}  // namespace paramshard::server
