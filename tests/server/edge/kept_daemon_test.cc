// A daemon whose models outlive it, in the test's own process: how what became of them shows to its callers.

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "common/shared_memory/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "server/device/kept_memory.h"
#include "tests/server/device/faulty_device.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/server/models/left_memory.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class KeptDaemonTest : public DaemonTestBase {
 protected:
  KeptDaemonTest() { Start(); }
  // The keeper's descriptors outlive the daemons.
  ~KeptDaemonTest() override { Stop(); }

  void Stop() {
    client_.reset();
    daemon_.reset();
  }
  void Start() {
    Stop();
    const auto open = [this](absl::Span<const Device> devices) { return Open(devices); };
    auto daemon = Daemon::Start(Config(), open, {}, {.restart = nullptr, .kept = kept_.get()});
    PARAMSHARD_CHECK(daemon.ok());
    daemon_ = *std::move(daemon);
    client_ = std::make_unique<DaemonClient>(socket_dir());
  }
  absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>> Open(absl::Span<const Device> devices) {
    ASSIGN_OR_RETURN(auto opened, OpenDevices(devices));
    for (auto& device : opened) device = std::make_unique<FaultyDevice>(std::move(device), &faults_);
    return opened;
  }
  // After a server that was killed when it had left that.
  void StartAfter(FakeKeptStore& left) {
    Stop();
    kept_ = std::make_unique<FakeKeptStore>();
    CopyKept(left, *kept_);
    Start();
  }
  absl::Status Delete(const std::string& model) {
    v1::DeleteModelRequest request;
    request.set_model(model);
    return client_->Call(client_->trainer(), &v1::TrainerService::Stub::DeleteModel, request).status();
  }
  // All of w.w, from a client.
  absl::Status Import() {
    std::vector<float> values(24);
    std::iota(values.begin(), values.end(), 1.0f);
    v1::ImportRequest header, tensor, chunk, end;
    header.mutable_header()->set_model("m");
    tensor.mutable_tensor()->set_parameter("w.w");
    tensor.mutable_tensor()->set_kind(v1::TENSOR_KIND_MASTER);
    tensor.mutable_tensor()->mutable_shape()->Add(6);
    tensor.mutable_tensor()->mutable_shape()->Add(4);
    tensor.mutable_tensor()->set_rows(6);
    chunk.mutable_chunk()->set_data(values.data(), values.size() * sizeof(float));
    chunk.mutable_chunk()->set_crc32c(wire::Crc32c(chunk.chunk().data()));
    end.mutable_end()->set_slice_count(1);
    end.mutable_end()->set_size_bytes(static_cast<int64_t>(chunk.chunk().data().size()));
    end.mutable_end()->set_crc32c(wire::ExtendCrc32c(0, chunk.chunk().crc32c()));
    const auto context = client_->Context();
    v1::ImportResponse response;
    const auto writer = client_->trainer().Import(context.get(), &response);
    for (const v1::ImportRequest* const request : {&header, &tensor, &chunk, &end}) writer->Write(*request);
    writer->WritesDone();
    return FromGrpc(writer->Finish());
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

  DeviceFaults faults_;
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
  ASSERT_OK(Delete("m"));
  EXPECT_THAT(Models().models(), IsEmpty());
  EXPECT_THAT(KeptModels::Sort(*kept_->TakeAll()).models, IsEmpty());
}

TEST_F(KeptDaemonTest, AnImportThatWasCutOffSaysHowToMakeItAgainAndThatMakesTheModelUsable) {
  const v1::ModelSpec spec = MakeSpec("m", {MakeUnit("w", {MakeParameter("w.w", {6, 4})})});
  ASSERT_OK(client_->CreateModel(spec));
  FakeKeptStore left;
  absl::once_flag once;
  faults_.before_write = [&] { absl::call_once(once, [&] { CopyKept(*kept_, left); }); };
  ASSERT_OK(Import());
  faults_.before_write = [] {};
  const std::string imported = client_->StateHash("m");

  StartAfter(left);
  const auto says_how = HasSubstr(
      "an import was interrupted, and its sender disconnected); create it with a restore; or delete it, create it, and "
      "import");
  ASSERT_THAT(Models().models(), SizeIs(1));
  EXPECT_THAT(Models().models(0).unusable(), says_how);
  const auto is_lost = StatusIs(absl::StatusCode::kDataLoss, says_how);
  EXPECT_THAT(client_->CreateModel(spec), is_lost) << "what a trainer is told";
  EXPECT_THAT(Import(), is_lost);
  ASSERT_OK(Delete("m"));
  ASSERT_OK(client_->CreateModel(spec));
  ASSERT_OK(Import());
  EXPECT_EQ(client_->StateHash("m"), imported);
  Start();
  EXPECT_EQ(client_->StateHash("m"), imported) << "after the next server too";
}

}  // namespace
}  // namespace paramshard::server
