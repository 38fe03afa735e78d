// Sessions that take over ranks whose holders were killed and do not go.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/edge/companion_server.h"
#include "server/edge/guarded_service.h"
#include "server/edge/trainer_service.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/edge/test_session.h"
#include "tests/server/models/test_world.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/daemon_process.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

// The kernel, which lets everybody live.
class Merciful final : public SystemCalls {
 public:
  absl::Status Kill(int) override { return absl::OkStatus(); }
};

class TakeOverTest : public testing::Test {
 protected:
  TakeOverTest() {
    auto companion = CompanionServer::Start({.path = directory_.path() + "/handoff.sock",
                                             .allowed_users = {geteuid()},
                                             .on_gone = [this](const std::string& token) { callers_.Gone(token); },
                                             .system = &system_});
    EXPECT_OK(companion);
    companion_ = *std::move(companion);
    callers_.SetCompanion(companion_.get());
    absl::StatusOr<CallWorkers> workers = CallWorkers::Start();
    EXPECT_OK(workers);
    workers_ = *std::move(workers);
    service_ = std::make_unique<TrainerService>(&world_.store(), &restores_, &callers_, &workers_, std::nullopt);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    builder.AddListeningPort(absl::StrCat("unix:", directory_.path(), "/grpc.sock"), grpc::InsecureServerCredentials());
    server_ = builder.BuildAndStart();
  }
  ~TakeOverTest() override { server_->Shutdown(); }

  std::unique_ptr<TestSession> Attach(const std::string& model, bool take_over) {
    auto session = std::make_unique<TestSession>(directory_.path());
    v1::AttachRequest attach = MakeAttach(model, 0);
    attach.set_take_over(take_over);
    session->Attach(attach);
    return session;
  }

  Merciful system_;
  const test::TemporaryDirectory directory_;
  TestWorld world_{{.ranks = 2}};
  Restores restores_{{.store = &world_.store()}};
  Callers callers_;
  std::unique_ptr<CompanionServer> companion_;
  CallWorkers workers_;
  std::unique_ptr<TrainerService> service_;
  std::unique_ptr<grpc::Server> server_;
};

// More than sessions have workers.
TEST_F(TakeOverTest, WaitingForAHolderHoldsNoWorker) {
  constexpr int kRanks = 6;
  std::vector<std::unique_ptr<TestSession>> holders;
  std::vector<std::unique_ptr<TestSession>> takers;
  for (int i = 0; i < kRanks; ++i) {
    const std::string model = absl::StrCat("m", i);
    world_.Create(MakeSpec(model, {MakeUnit("u", {MakeParameter("w", {8, 4})})}));
    ASSERT_TRUE(holders.emplace_back(Attach(model, false))->Read().has_accepted());
    takers.push_back(Attach(model, true));
  }
  world_.Create(MakeSpec("free", {MakeUnit("u", {MakeParameter("w", {8, 4})})}));
  EXPECT_TRUE(Attach("free", false)->Read().has_accepted());
  holders.clear();
  for (const auto& taker : takers) EXPECT_TRUE(taker->Read().has_accepted()) << "it waits still";
}

// Creations that wait for another daemon wait like this.
TEST_F(TakeOverTest, ChangesThatWaitKeepNoDeletionWaiting) {
  constexpr int kMany = 64;
  world_.Create(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {8, 4})})}));
  const auto over = std::make_shared<absl::Notification>();
  for (int i = 0; i < kMany; ++i) workers_.changes->Post([over] { over->WaitForNotification(); });
  DaemonClient client(directory_.path());
  v1::DeleteModelRequest request;
  request.set_model("m");
  EXPECT_OK(client.Call(client.trainer(), &v1::TrainerService::Stub::DeleteModel, request).status());
  over->Notify();
}

TEST_F(TakeOverTest, AHolderWhoDoesNotGoIsNamed) {
  world_.Create(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {8, 4})})}));
  const auto holder = Attach("m", false);
  ASSERT_TRUE(holder->Read().has_accepted());
  EXPECT_THAT(Attach("m", true)->Finish(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, testing::HasSubstr("did not exit after it was killed")));
}

}  // namespace
}  // namespace paramshard::server
