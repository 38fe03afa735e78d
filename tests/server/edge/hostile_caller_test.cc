// A daemon in a process of its own, and callers who want its memory and its threads.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/model/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/edge/raw_call.h"
#include "tests/server/edge/test_session.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AnyOf;

constexpr char kCreateModel[] = "/paramshard.v1.TrainerService/CreateModel";
constexpr int64_t kMiB = 1 << 20;

class HostileCallerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto daemon =
        test::DaemonProcess::Start(test::Program(PARAMSHARDD), directory_.path(), {"--device=cpu:0", "--device=cpu:1"});
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
    caller_ = std::make_unique<DaemonClient>(directory_.path());
    ASSERT_OK(caller_->CreateModel(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {8, 4})})})));
  }

  // The most that the daemon has ever had resident.
  int64_t PeakBytes() const {
    std::ifstream file(absl::StrCat("/proc/", daemon_->pid(), "/status"));
    for (std::string line; std::getline(file, line);) {
      if (!absl::StartsWith(line, "VmHWM:")) continue;
      const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
      int64_t kilobytes = 0;
      PARAMSHARD_CHECK(words.size() == 3 && absl::SimpleAtoi(words[1], &kilobytes));
      return kilobytes * 1024;
    }
    return 0;
  }
  // The peak is what is resident now.
  void ForgetPeak() const { std::ofstream(absl::StrCat("/proc/", daemon_->pid(), "/clear_refs")) << "5"; }
  int64_t DaemonThreads() const { return CountEntries(absl::StrCat("/proc/", daemon_->pid(), "/task")); }

  void ExpectAlive() {
    DaemonClient another(directory_.path());
    v1::GetVersionResponse version;
    EXPECT_OK(FromGrpc(another.admin().GetVersion(another.Context().get(), {}, &version)));
    TestSession first(directory_.path());
    TestSession second(directory_.path());
    first.Attach(MakeAttach("m", 0));
    second.Attach(MakeAttach("m", 1));
    EXPECT_TRUE(first.AwaitStarted());
    EXPECT_TRUE(second.AwaitStarted());
  }

  const test::TemporaryDirectory directory_;
  std::optional<test::DaemonProcess> daemon_;
  std::unique_ptr<DaemonClient> caller_;
};

// A spec of a million empty units takes 65 times its bytes when it is parsed.
TEST_F(HostileCallerTest, MessagesOfStrangersTakeNoMemory) {
  std::string spec;
  for (int i = 0; i < kMiB; ++i) spec += std::string("\x12\x00", 2);
  // CreateModelRequest{spec: ...}: field 1, and the length 2^21.
  const std::string request = absl::StrCat("\x0a\x80\x80\x80\x01", spec);
  const int64_t before = PeakBytes();
  std::vector<std::thread> strangers;
  for (int i = 0; i < 4; ++i) {
    strangers.emplace_back([&] {
      for (int repeat = 0; repeat < 10; ++repeat) {
        EXPECT_THAT(CallRaw(caller_->channel(), kCreateModel, request, DaemonClient::ContextWith(std::nullopt).get()),
                    StatusIs(absl::StatusCode::kUnauthenticated));
      }
    });
  }
  for (std::thread& stranger : strangers) stranger.join();
  EXPECT_LT(PeakBytes() - before, 32 * kMiB);
  ExpectAlive();
}

// 64 KiB that would inflate to 64 MiB, of a stranger and of a caller with a token.
TEST_F(HostileCallerTest, NothingIsInflated) {
  const std::string zeros(64 * kMiB, 0);
  const int64_t before = PeakBytes();
  for (const std::optional<std::string>& token : {std::optional<std::string>(), std::make_optional(caller_->token())}) {
    const auto context = DaemonClient::ContextWith(token);
    context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
    EXPECT_THAT(CallRaw(caller_->channel(), kCreateModel, zeros, context.get()),
                StatusIs(absl::StatusCode::kUnimplemented));
  }
  EXPECT_LT(PeakBytes() - before, 32 * kMiB);
  ExpectAlive();
}

TEST_F(HostileCallerTest, AMessageHasABoundForEverybody) {
  const int64_t before = PeakBytes();
  EXPECT_THAT(
      CallRaw(caller_->channel(), kCreateModel, std::string(kMaxMessageBytes + 1, 'x'), caller_->Context().get()),
      StatusIs(absl::StatusCode::kResourceExhausted, testing::HasSubstr("larger than max")));
  EXPECT_LT(PeakBytes() - before, 64 * kMiB);
  ExpectAlive();
}

// Reflection needs no token; its streams hold threads of gRPC's, which have a bound.
TEST_F(HostileCallerTest, StreamsOfReflectionHoldFewThreads) {
  ExpectAlive();
  const int64_t threads = DaemonThreads();
  grpc::GenericStub stub(caller_->channel());
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> streams;
  for (int i = 0; i < 200; ++i) {
    contexts.push_back(DaemonClient::ContextWith(std::nullopt));
    streams.push_back(stub.PrepareCall(contexts.back().get(),
                                       "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue));
    streams.back()->StartCall(nullptr);
  }
  // Rejected calls end at once; the others wait for a request until they are cancelled.
  for (size_t i = 0; i < streams.size(); ++i) {
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
  }
  ExpectAlive();
  EXPECT_LT(DaemonThreads(), threads + 30);
  std::vector<grpc::Status> ends(streams.size());
  for (size_t i = 0; i < streams.size(); ++i) streams[i]->Finish(&ends[i], &ends[i]);
  for (size_t i = 0; i < streams.size(); ++i) {
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    if (i > 0) continue;
    EXPECT_EQ(static_cast<grpc::Status*>(tag)->error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    for (const auto& context : contexts) context->TryCancel();
  }
  ExpectAlive();
}

// One token may open as many streams as it likes, and many may open one each: nobody's holds a thread.
TEST_F(HostileCallerTest, SilentStreamsHoldNoThreads) {
  ExpectAlive();
  const int64_t threads = OwnThreads(absl::StrCat(daemon_->pid()));
  std::vector<std::unique_ptr<TestSession>> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(std::make_unique<TestSession>(directory_.path()));
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionResponse>>> streams;
  for (int i = 0; i < 1500; ++i) {
    contexts.push_back(caller_->Context());
    streams.push_back(caller_->trainer().Session(contexts.back().get()));
  }
  ExpectAlive();
  EXPECT_LT(OwnThreads(absl::StrCat(daemon_->pid())), threads + 10);
  for (const auto& stream : streams) {
    v1::SessionResponse none;
    EXPECT_FALSE(stream->Read(&none));
    EXPECT_THAT(FromGrpc(stream->Finish()), StatusIs(AnyOf(absl::StatusCode::kFailedPrecondition,   // has one already
                                                           absl::StatusCode::kResourceExhausted,    // too many calls
                                                           absl::StatusCode::kDeadlineExceeded)));  // says nothing
  }
  for (const auto& session : silent) EXPECT_THAT(session->Finish(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  ExpectAlive();
}

// A tensor of 32 MiB goes out in chunks of 1 MiB, each of which is read when the one before has been taken.
TEST_F(HostileCallerTest, AnExportHoldsOneChunk) {
#ifdef PARAMSHARD_SANITIZE
  GTEST_SKIP() << "sanitizers keep what is freed for a while";
#endif
  ASSERT_OK(caller_->CreateModel(MakeSpec("large", {MakeUnit("u", {MakeParameter("w", {1, 8 << 20})})})));
  ForgetPeak();
  const int64_t before = PeakBytes();
  const auto context = caller_->Context();
  v1::ExportRequest request;
  request.set_model("large");
  const auto reader = caller_->trainer().Export(context.get(), request);
  int64_t size_bytes = 0;
  for (v1::ExportResponse response; reader->Read(&response);) {
    size_bytes += static_cast<int64_t>(response.chunk().data().size());
  }
  EXPECT_OK(FromGrpc(reader->Finish()));
  EXPECT_EQ(size_bytes, 32 * kMiB);
  EXPECT_LT(PeakBytes() - before, 16 * kMiB);
}

}  // namespace
}  // namespace paramshard::server
