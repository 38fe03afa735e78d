// A daemon whose models outlive it, in the test's own process: how what became of them shows to its callers.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "server/device/kept_memory.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/server/service/daemon_client.h"
#include "tests/server/store/test_spec.h"
#include "tests/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class KeptDaemonTest : public DaemonTestBase {
 protected:
  KeptDaemonTest() { Start(); }
  // What a keeper holds outlives them.
  ~KeptDaemonTest() override { Stop(); }

  void Stop() {
    client_.reset();
    daemon_.reset();
  }
  void Start() {
    Stop();
    auto daemon = Daemon::Start(Config(), OpenDevices, {}, {.restart = nullptr, .kept = kept_.get()});
    PARAMSHARD_CHECK(daemon.ok());
    daemon_ = *std::move(daemon);
    client_ = std::make_unique<DaemonClient>(socket_dir());
  }
  // All of the memory but the journal is gone.
  void Damage() {
    Stop();
    const auto taken = kept_->TakeAll();
    ASSERT_OK(taken);
    kept_ = std::make_unique<FakeKeptStore>();
    for (const auto& [name, fd] : *taken) {
      if (!absl::StrContains(name, kJournalPiece)) continue;
      ASSERT_OK(kept_->Keep(name, fd.get()));
    }
  }
  v1::ListModelsResponse Models() {
    auto models = client_->Call(client_->admin(), &v1::AdminService::Stub::ListModels, v1::ListModelsRequest());
    EXPECT_OK(models);
    return models.ok() ? *std::move(models) : v1::ListModelsResponse();
  }

  std::unique_ptr<FakeKeptStore> kept_ = std::make_unique<FakeKeptStore>();
};

TEST_F(KeptDaemonTest, AModelGoesOnWithTheNextOne) {
  ASSERT_OK(client_->CreateModel(MakeSpec("m", {MakeUnit("w", {MakeParameter("w.w", {6, 4})})})));
  const std::string hash = client_->StateHash("m");
  Start();
  EXPECT_EQ(client_->StateHash("m"), hash);
  ASSERT_THAT(Models().models(), SizeIs(1));
  EXPECT_THAT(Models().models(0).unusable(), IsEmpty());
}

TEST_F(KeptDaemonTest, ALostModelIsListedWithItsReasonAndMayBeDeleted) {
  ASSERT_OK(client_->CreateModel(MakeSpec("m", {MakeUnit("w", {MakeParameter("w.w", {6, 4})})})));
  Damage();
  Start();
  ASSERT_THAT(Models().models(), SizeIs(1));
  EXPECT_EQ(Models().models(0).name(), "m");
  EXPECT_THAT(Models().models(0).unusable(), HasSubstr("its state was lost with the server before this one (adopt"));
  v1::DeleteModelRequest request;
  request.set_model("m");
  ASSERT_OK(client_->Call(client_->trainer(), &v1::TrainerService::Stub::DeleteModel, request));
  EXPECT_THAT(Models().models(), IsEmpty());
  EXPECT_THAT(*kept_->TakeAll(), IsEmpty());
}

}  // namespace
}  // namespace paramshard::server
