// Calls whose callers neither send nor take anything, of a service without a daemon.
#include "server/edge/call.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/shared_memory/companion_packet.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "paramshard/v1/trainer.grpc.pb.h"
#include "server/edge/companion_server.h"
#include "server/edge/guarded_service.h"
#include "tests/server/edge/companion_client.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/support/daemon_process.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

constexpr char kGetModel[] = "/paramshard.v1.TrainerService/GetModel";
constexpr char kExport[] = "/paramshard.v1.TrainerService/Export";
constexpr char kImport[] = "/paramshard.v1.TrainerService/Import";
// More than a stream takes before anybody reads it.
constexpr size_t kLargeAnswer = 1 << 20;

// One request with a large answer, a stream that is read to its end, and one that is written as long as it is taken.
class SmallService final : public GuardedService {
 public:
  SmallService(Callers* callers, CallWorkers* workers, CallerTimeout timeout)
      : GuardedService(v1::TrainerService::service_full_name(), callers, timeout) {
    Handle("GetModel", workers->questions.get(), &SmallService::GetModel);
    Handle("Import", workers->transfers.get(), &SmallService::Import);
    Handle("Export", workers->transfers.get(), &SmallService::Export);
  }

  // From now on the objects of GetModel's calls live as long as the service.
  void KeepCalls() {
    absl::MutexLock lock(&mu_);
    keeps_calls_ = true;
  }

 private:
  absl::StatusOr<v1::GetModelResponse> GetModel(const Call& call, const v1::GetModelRequest&) {
    v1::GetModelResponse response;
    absl::MutexLock lock(&mu_);
    if (keeps_calls_) kept_.push_back(call.shared_from_this());
    response.mutable_model()->mutable_spec()->set_name(std::string(kLargeAnswer, 'x'));
    return response;
  }
  absl::StatusOr<v1::ImportResponse> Import(const Call& call, MessageReader<v1::ImportRequest>* reader) {
    v1::ImportResponse response;
    for (v1::ImportRequest request; reader->Read(&request);) response.set_tensor_count(response.tensor_count() + 1);
    if (call.IsCancelled()) return absl::AbortedError("the stream broke off");
    return response;
  }
  absl::Status Export(const Call&, const v1::ExportRequest&, MessageWriter<v1::ExportResponse>* writer) {
    v1::ExportResponse response;
    response.mutable_chunk()->set_data(std::string(kLargeAnswer, 'x'));
    while (writer->Write(response)) {
    }
    return absl::AbortedError("nobody takes the stream");
  }

  absl::Mutex mu_;
  bool keeps_calls_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::shared_ptr<const Call>> kept_ ABSL_GUARDED_BY(mu_);
};

// Ends each call at once; its worker then stays until the service goes.
class LingeringService final : public GuardedService {
 public:
  LingeringService(Callers* callers, CallWorkers* workers)
      : GuardedService(v1::TrainerService::service_full_name(), callers),
        method_({.name = "GetModel", .workers = workers->questions.get(), .timeout = {}}) {
    Handle("GetModel", [this](grpc::CallbackServerContext* context, Callers::Admission admission) {
      return Call::Start(method_, context, std::move(admission), [this](Call& call) {
        call.Answer(v1::GetModelResponse());
        go_.WaitForNotification();
      });
    });
  }
  void Go() { go_.Notify(); }

 private:
  const CallMethod method_;
  absl::Notification go_;
};

class CallTest : public testing::Test {
 protected:
  void Start(CallerTimeout timeout) {
    ASSERT_NO_FATAL_FAILURE(StartWorkers());
    service_ = std::make_unique<SmallService>(&callers_, &workers_, timeout);
    Serve(service_.get());
  }
  void StartWorkers() {
    auto companion = CompanionServer::Start({.path = directory_.path() + "/handoff.sock",
                                             .allowed_users = {geteuid()},
                                             .on_gone = [this](const std::string& token) { callers_.Gone(token); }});
    ASSERT_OK(companion.status());
    companion_ = *std::move(companion);
    callers_.SetCompanion(companion_.get());
    ASSERT_OK_AND_ASSIGN(workers_, CallWorkers::Start());
  }
  void Serve(grpc::Service* service) {
    grpc::ServerBuilder builder;
    builder.RegisterService(service);
    builder.AddListeningPort(absl::StrCat("unix:", directory_.path(), "/grpc.sock"), grpc::InsecureServerCredentials());
    server_ = builder.BuildAndStart();
    client_ = std::make_unique<DaemonClient>(directory_.path());
    stub_ = std::make_unique<grpc::GenericStub>(SmallWindowChannel());
  }
  ~CallTest() override {
    client_.reset();
    if (server_ != nullptr) server_->Shutdown();
  }

  // A stream takes what it was asked for, and little more.
  std::shared_ptr<grpc::Channel> SmallWindowChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);
    return grpc::CreateCustomChannel(absl::StrCat("unix:", directory_.path(), "/grpc.sock"),
                                     grpc::InsecureChannelCredentials(), arguments);
  }

  // A call that has begun and says nothing. Its context has a deadline of a minute, which is the client's own.
  struct Stream {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
  };
  Stream Open(const std::string& method) { return Open(method, client_->Context()); }
  Stream Open(const std::string& method, std::unique_ptr<grpc::ClientContext> context) {
    Stream stream{.context = std::move(context), .call = nullptr};
    stream.call = stub_->PrepareCall(stream.context.get(), method, &queue_);
    stream.call->StartCall(nullptr);
    EXPECT_TRUE(Next());
    return stream;
  }
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }
  // Without taking any message.
  absl::Status EndOf(Stream& stream) {
    grpc::Status status;
    stream.call->Finish(&status, nullptr);
    EXPECT_TRUE(Next());
    return FromGrpc(status);
  }

  const test::TemporaryDirectory directory_;
  Callers callers_;
  std::unique_ptr<CompanionServer> companion_;
  CallWorkers workers_;
  std::unique_ptr<SmallService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<DaemonClient> client_;
  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::CompletionQueue queue_;
};

TEST_F(CallTest, ARequestThatDoesNotComeEndsTheCall) {
  Start({.longest_wait = absl::Milliseconds(50)});
  for (const char* method : {kGetModel, kImport}) {
    Stream stream = Open(method);
    EXPECT_THAT(EndOf(stream),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("timed out waiting for the request")));
  }
}

// One caller begins as many calls as it may have. Their contexts have no deadline: the daemon ends them.
TEST_F(CallTest, AnswersThatNobodyTakesEndTheirCalls) {
  Start({.longest_wait = absl::Seconds(2)});  // in which all of them have begun
  const grpc::Slice request("");
  std::vector<Stream> streams;
  for (int i = 0; i < kMaxCallsOfCaller; ++i) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->AddMetadata(wire::kTokenMetadata, client_->token());
    const Stream& stream = streams.emplace_back(Open(kGetModel, std::move(context)));
    stream.call->WriteLast(grpc::ByteBuffer(&request, 1), grpc::WriteOptions(), nullptr);
    ASSERT_TRUE(Next());
  }
  absl::Status status;
  do {
    status = client_->Call(client_->trainer(), &v1::TrainerService::Stub::GetModel, v1::GetModelRequest()).status();
  } while (absl::IsResourceExhausted(status));
  EXPECT_OK(status);
  for (const Stream& stream : streams) stream.context->TryCancel();
  for (Stream& stream : streams) EXPECT_THAT(EndOf(stream), StatusIs(absl::StatusCode::kCancelled));
}

// One caller begins enough streams to take all workers that it may have. Each ends with a write in progress.
TEST_F(CallTest, StreamsThatNobodyTakesGiveTheirWorkersBack) {
  Start({.longest_wait = absl::Seconds(2)});  // in which all of them have begun
  const grpc::Slice request("");
  std::vector<Stream> streams;
  for (int i = 0; i < 8; ++i) {
    const Stream& stream = streams.emplace_back(Open(kExport));
    stream.call->WriteLast(grpc::ByteBuffer(&request, 1), grpc::WriteOptions(), nullptr);
    ASSERT_TRUE(Next());
  }
  const auto import = [&] {
    const auto context = client_->Context();
    v1::ImportResponse response;
    const auto writer = client_->trainer().Import(context.get(), &response);
    writer->Write(v1::ImportRequest());
    writer->WritesDone();
    return FromGrpc(writer->Finish());
  };
  absl::Status status;
  do {
    status = import();
  } while (absl::IsResourceExhausted(status));
  EXPECT_OK(status);
  for (const Stream& stream : streams) stream.context->TryCancel();
  for (Stream& stream : streams) EndOf(stream).IgnoreError();
}

TEST_F(CallTest, SilentStreamsHoldNoWorkers) {
  Start({.longest_wait = absl::Hours(1)});
  std::vector<Stream> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(Open(kImport));
  const auto context = client_->Context();
  v1::ImportResponse response;
  const auto writer = client_->trainer().Import(context.get(), &response);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(writer->Write(v1::ImportRequest()));
  EXPECT_TRUE(writer->WritesDone());
  EXPECT_OK(FromGrpc(writer->Finish()));
  EXPECT_EQ(response.tensor_count(), 3);
  for (const Stream& stream : silent) stream.context->TryCancel();
  for (Stream& stream : silent) EXPECT_THAT(EndOf(stream), StatusIs(absl::StatusCode::kCancelled));
}

// Each message comes soon after the one before. All waits together are what counts.
TEST_F(CallTest, ATrickleIsLateInTheEnd) {
  Start({.longest_wait = absl::Milliseconds(50), .bytes_per_second = int64_t{1} << 60});
  absl::Status end;
  do {  // on a busy machine a call's first message may be the one that is late
    const auto context = client_->Context();
    v1::ImportResponse response;
    const auto writer = client_->trainer().Import(context.get(), &response);
    while (writer->Write(v1::ImportRequest())) {
    }
    end = FromGrpc(writer->Finish());
  } while (absl::StrContains(end.message(), "Import: timed out waiting for the request"));
  EXPECT_THAT(end, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("Import: timed out waiting for messages")));
}

// A timer that was cleared may keep a call's object for longer than the server, and the callers, are there.
TEST_F(CallTest, ObjectsOfCallsThatAreOverHoldNoPlaces) {
  Start({});
  service_->KeepCalls();
  for (int i = 0; i < 2 * kMaxCallsOfCaller; ++i) {
    ASSERT_OK(client_->Call(client_->trainer(), &v1::TrainerService::Stub::GetModel, v1::GetModelRequest()).status());
  }
}

// A client that has its answer may call again, even if the worker has not returned yet.
TEST_F(CallTest, AnAnsweredCallHoldsNoPlaceOfItsWorkers) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers());
  ASSERT_OK_AND_ASSIGN(workers_.questions, Workers::Start("questions", {.threads = 3, .max_works = 1}));
  LingeringService service(&callers_, &workers_);
  Serve(&service);
  for (int i = 0; i < 3; ++i) {
    EXPECT_OK(client_->Call(client_->trainer(), &v1::TrainerService::Stub::GetModel, v1::GetModelRequest()).status());
  }
  service.Go();
  server_->Shutdown();
  server_.reset();
  workers_.questions.reset();
}

TEST_F(CallTest, AStreamWithoutAMessageIsRefused) {
  Start({});
  const auto context = client_->Context();
  v1::ImportResponse response;
  const auto writer = client_->trainer().Import(context.get(), &response);
  writer->WritesDone();
  EXPECT_THAT(FromGrpc(writer->Finish()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Import: the stream ended without a request")));
}

}  // namespace
}  // namespace paramshard::server
