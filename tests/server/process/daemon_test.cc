#include "server/process/daemon.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/edge/raw_call.h"
#include "tests/server/edge/test_session.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::ModelSpec Spec() { return MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {8, 4})})}); }

class DaemonTest : public DaemonTestBase {
 protected:
  absl::StatusOr<std::string> CallRaw(const std::string& method, const std::string& request) {
    return server::CallRaw(client_->channel(), method, request, DaemonClient::ContextWith(std::nullopt).get());
  }
};

// grpc.health.v1.HealthCheckResponse{status: SERVING} is field 1, varint 1.
TEST_F(DaemonTest, HealthNeedsNoToken) {
  EXPECT_THAT(CallRaw("/grpc.health.v1.Health/Check", ""), IsOkAndHolds(std::string("\x08\x01", 2)));
}

class BrokenDeviceDaemonTest : public DaemonTest {
 protected:
  static constexpr char kServing[] = "\x08\x01";
  static constexpr char kNotServing[] = "\x08\x02";

  void SetUp() override {
    client_.reset();
    daemon_.reset();
    const auto open = [this](absl::Span<const Device> ids) {
      std::vector<std::unique_ptr<ComputeDevice>> devices;
      for (const Device& id : ids) devices.push_back(MakeCpuDevice(id.index));
      second_ = devices[1].get();
      return absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>>(std::move(devices));
    };
    ASSERT_OK_AND_ASSIGN(daemon_, Daemon::Start(Config(), open));
    client_ = std::make_unique<DaemonClient>(socket_dir());
  }

  // Returns the health of a service; of all if the name is empty.
  absl::StatusOr<std::string> Health(const std::string& service) {
    const std::string request = service.empty() ? "" : "\x0a" + std::string(1, char(service.size())) + service;
    return CallRaw("/grpc.health.v1.Health/Check", request);
  }

  ComputeDevice* second_ = nullptr;
};

TEST_F(BrokenDeviceDaemonTest, IsNotServingAndStaysOpenToInspection) {
  ASSERT_OK(client_->CreateModel(Spec()));
  for (const char* service : {"", "paramshard.v1.TrainerService", "paramshard.v1.AdminService"}) {
    EXPECT_THAT(Health(service), IsOkAndHolds(kServing)) << service;
  }
  second_->health().Break(absl::InternalError("cpu:1 is broken: a test has said so"));
  EXPECT_THAT(Health(""), IsOkAndHolds(kNotServing));
  EXPECT_THAT(Health("paramshard.v1.TrainerService"), IsOkAndHolds(kNotServing));
  EXPECT_THAT(Health("paramshard.v1.AdminService"), IsOkAndHolds(kServing));

  v1::ModelSpec another = Spec();
  another.set_name("another");
  const auto is_broken = StatusIs(absl::StatusCode::kInternal, HasSubstr("cpu:1 is broken: a test has said so"));
  EXPECT_THAT(client_->CreateModel(another), is_broken);
  TestSession session(socket_dir());
  session.Attach(MakeAttach("m", 0));
  EXPECT_THAT(session.Finish(), is_broken);

  using Admin = v1::AdminService::Stub;
  v1::ListShardsRequest of_model;
  of_model.set_model("m");
  ASSERT_OK_AND_ASSIGN(const v1::ListShardsResponse shards,
                       client_->Call(client_->admin(), &Admin::ListShards, of_model));
  ASSERT_OK_AND_ASSIGN(const v1::GetMemoryResponse memory,
                       client_->Call(client_->admin(), &Admin::GetMemory, v1::GetMemoryRequest()));
  ASSERT_OK_AND_ASSIGN(const v1::GetVersionResponse version,
                       client_->Call(client_->admin(), &Admin::GetVersion, v1::GetVersionRequest()));
  for (const auto& broken : {shards.broken_devices(), memory.broken_devices(), version.broken_devices()}) {
    ASSERT_EQ(broken.size(), 1);
    EXPECT_EQ(broken[0].device(), "cpu:1");
    EXPECT_THAT(broken[0].reason(), HasSubstr("a test has said so"));
  }
}

TEST_F(DaemonTest, ReflectionNeedsNoTokenAndKnowsTheServices) {
  // ServerReflectionRequest{list_services: ""}: the stream answers one request.
  EXPECT_THAT(CallRaw("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", std::string("\x3a\x00", 2)),
              IsOkAndHolds(AllOf(HasSubstr("paramshard.v1.TrainerService"), HasSubstr("paramshard.v1.AdminService"),
                                 HasSubstr("grpc.health.v1.Health"))));
}

TEST_F(DaemonTest, SocketsAreForTheirOwnerOnly) {
  for (const char* name : {"/grpc.sock", "/handoff.sock"}) {
    struct stat info {};
    ASSERT_EQ(stat((socket_dir() + name).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u) << name;
  }
  struct stat info {};
  ASSERT_EQ(stat(socket_dir().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(DaemonTest, ASecondDaemonOfTheSameDirectoryIsRefused) {
  EXPECT_THAT(Daemon::Start(Config()), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(socket_dir())));
  EXPECT_OK(client_->CreateModel(Spec())) << "the first one is unharmed";
}

TEST_F(DaemonTest, ADirectoryMayBeUsedAgainAfterTheEnd) {
  StartDaemon([](DaemonConfig&) {});
  EXPECT_OK(client_->CreateModel(Spec()));
}

TEST_F(DaemonTest, BadDevicesAreRefused) {
  DaemonConfig config = Config();
  config.devices = {"cpu:x"};
  EXPECT_THAT(Daemon::Start(config), StatusIs(absl::StatusCode::kInvalidArgument));
  config.devices = {"cuda:4096"};
  EXPECT_THAT(Daemon::Start(config), StatusIs(AnyOf(absl::StatusCode::kFailedPrecondition,  // no driver, no such GPU
                                                    absl::StatusCode::kUnimplemented)));    // no CUDA in this build
}

// Before a GPU is opened: this machine need not have one.
TEST_F(DaemonTest, GpusOfSeveralDaemonsWithoutNcclAreRefusedAtOnce) {
  DaemonConfig config = Config();
  config.devices = {"cuda:0"};
  config.nodes = 2;
  config.cluster_address = "127.0.0.1:1";
  config.nccl_library = "/nowhere/libnccl.so.2";
  const auto is_refused =
      AnyOf(StatusIs(absl::StatusCode::kFailedPrecondition,
                     AllOf(HasSubstr("/nowhere/libnccl.so.2"), HasSubstr("PARAMSHARD_NCCL_LIBRARY"))),
            StatusIs(absl::StatusCode::kUnimplemented));  // no CUDA in this build
  EXPECT_THAT(Daemon::Check(config), is_refused);
  EXPECT_THAT(Daemon::Start(config).status(), is_refused);
  config.nodes = 1;
  EXPECT_OK(Daemon::Check(config)) << "copy engines need none";
  config.local_engine = "mesh";
  EXPECT_OK(Daemon::Check(config)) << "one GPU has nobody to exchange bytes with";
  config.devices = {"cuda:0", "cuda:1"};
  EXPECT_THAT(Daemon::Check(config), is_refused);
  config.devices = {"cpu:0", "cpu:1"};
  EXPECT_OK(Daemon::Check(config));
}

// NCCL is not loaded here: it would use loopback in this process from then on.
TEST_F(DaemonTest, NcclUsesTheInterfaceOfTheDataAddress) {
  unsetenv("NCCL_SOCKET_IFNAME");
  unsetenv("NCCL_SOCKET_FAMILY");
  DaemonConfig config = Config();
  config.devices = {"cuda:0"};
  config.nodes = 2;
  config.cluster_address = "127.0.0.1:1";
  config.data_address = "127.0.0.1";
  config.nccl_library = "/nowhere/libnccl.so.2";
  EXPECT_FALSE(Daemon::Check(config).ok());
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "=lo");
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_FAMILY"), "AF_INET");
}

TEST_F(DaemonTest, AFolderOfCheckpointsThatIsNoneOrThatOthersWriteToIsRefused) {
  const test::TemporaryDirectory saves;
  DaemonConfig config = Config();
  config.save_dir = saves.path();
  EXPECT_OK(Daemon::Check(config));
  ASSERT_EQ(chmod(saves.path().c_str(), 0777), 0);
  EXPECT_THAT(Daemon::Check(config),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("--save-dir: " + saves.path())));
  config.save_dir += "/none";
  EXPECT_THAT(Daemon::Start(config).status(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("create it")));
}

TEST_F(DaemonTest, AnUnknownUserIsRefused) {
  client_.reset();
  daemon_.reset();
  DaemonConfig config = Config();
  config.allow_users = {"no-such-user"};
  EXPECT_THAT(Daemon::Start(config), StatusIs(testing::_, HasSubstr("no-such-user")));
}

TEST_F(DaemonTest, LoopbackTcpServesTheSameWithTheSameTokens) {
  StartDaemon([](DaemonConfig& config) { config.listen = "127.0.0.1:0"; });
  EXPECT_THAT(daemon_->tcp_address(), StartsWith("127.0.0.1:"));
  const auto stub =
      v1::AdminService::NewStub(grpc::CreateChannel(daemon_->tcp_address(), grpc::InsecureChannelCredentials()));
  v1::GetVersionResponse response;
  EXPECT_OK(FromGrpc(stub->GetVersion(client_->Context().get(), {}, &response)));
  EXPECT_THAT(FromGrpc(stub->GetVersion(DaemonClient::ContextWith(std::nullopt).get(), {}, &response)),
              StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST_F(DaemonTest, ATcpAddressThatIsTakenIsRefused) {
  StartDaemon([](DaemonConfig& config) { config.listen = "127.0.0.1:0"; });
  const test::TemporaryDirectory other;
  DaemonConfig config = Config();
  config.socket_dir = other.path();
  config.listen = daemon_->tcp_address();
  EXPECT_THAT(Daemon::Start(config), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(daemon_->tcp_address())));
}

// A save that was asked for may be under way when the end comes.
TEST_F(DaemonTest, TheEndMayTakeAsLongAsASaveWhereSavesCanBeMade) {
  DaemonConfig config = Config();
  config.drain_timeout = absl::Seconds(1);
  config.save_timeout = absl::Minutes(1);
  EXPECT_EQ(Daemon::StopTimeout(config), absl::Seconds(1));
  config.save_dir = "/saves";
  for (const bool save_on_drain : {true, false}) {
    config.save_on_drain = save_on_drain;
    EXPECT_EQ(Daemon::StopTimeout(config), absl::Seconds(61));
  }
}

TEST_F(DaemonTest, DrainMakesWaitReturnAndIsIdempotent) {
  absl::Notification returned;
  std::thread waiter([&] {
    daemon_->Wait();
    returned.Notify();
  });
  EXPECT_OK(client_->Call(client_->admin(), &v1::AdminService::Stub::Drain, v1::DrainRequest()));
  EXPECT_TRUE(returned.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_OK(client_->Call(client_->admin(), &v1::AdminService::Stub::Drain, v1::DrainRequest()));
  waiter.join();
}

TEST_F(DaemonTest, StopTellsTrainersAndRemovesTheSockets) {
  ASSERT_OK(client_->CreateModel(Spec()));
  TestSession first(socket_dir());
  TestSession second(socket_dir());
  first.Attach(MakeAttach("m", 0));
  second.Attach(MakeAttach("m", 1));
  ASSERT_TRUE(first.AwaitStarted());
  ASSERT_TRUE(second.AwaitStarted());
  std::thread stopper([this] { daemon_->Stop(); });
  for (TestSession* session : {&first, &second}) {
    const v1::EpochEnded ended = session->AwaitEnded();
    EXPECT_EQ(ended.why().code(), static_cast<int>(absl::StatusCode::kUnavailable));
    EXPECT_THAT(ended.why().text(), HasSubstr("the daemon stops; state that was not exported is lost"));
    session->HalfClose();
    EXPECT_THAT(session->Finish(), StatusIs(absl::StatusCode::kUnavailable));
  }
  stopper.join();
  daemon_->Stop();
  daemon_->Wait();
  EXPECT_EQ(access((socket_dir() + "/grpc.sock").c_str(), F_OK), -1);
}

TEST_F(DaemonTest, NothingIsLeftAfterTheEnd) {
  // Threads that gRPC starts with the first daemon of a process stay.
  client_.reset();
  daemon_.reset();
  const int64_t descriptors = OpenDescriptors();
  for (int i = 0; i < 5; ++i) {
    StartDaemon([](DaemonConfig&) {});
    ASSERT_OK(client_->CreateModel(Spec()));
    TestSession session(socket_dir());
    session.Attach(MakeAttach("m", 0));
    EXPECT_TRUE(session.Read().has_accepted());
  }
  client_.reset();
  daemon_.reset();
  EXPECT_TRUE(SettlesWithin(descriptors, OpenDescriptors));
}

}  // namespace
}  // namespace paramshard::server
