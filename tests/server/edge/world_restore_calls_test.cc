// Restores by RPC in a world of two daemons, of checkpoints that the test has written.
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/step_folder.h"
#include "common/model/model_spec_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/steady_time.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/edge/test_session.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using checkpoint::SavedModel;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kNodes = 2;
constexpr char kName[] = "tall";

// Two daemons of one rank each, with one folder of checkpoints.
class WorldRestoreCallsTest : public testing::Test {
 protected:
  WorldRestoreCallsTest() { Start({}); }
  ~WorldRestoreCallsTest() override { Stop(); }

  void Start(const std::function<void(DaemonConfig&)>& change) {
    Stop();
    const std::string address = absl::StrCat("127.0.0.1:", test::FreePort());
    AtEachNode([&](int node) {
      DaemonConfig config;
      config.devices = {"cpu:0"};
      config.socket_dir = sockets_[node].path();
      config.node = node;
      config.nodes = kNodes;
      config.cluster_address = address;
      config.save_dir = saves_.path();
      config.save_on_drain = false;
      if (change) change(config);
      auto daemon = Daemon::Start(config);
      ASSERT_OK(daemon.status());
      daemons_[node] = *std::move(daemon);
      clients_[node] = std::make_unique<DaemonClient>(config.socket_dir);
    });
  }
  // Node 0 last, whom the other one would miss.
  void Stop() {
    for (int node = kNodes - 1; node >= 0; --node) {
      clients_[node].reset();
      daemons_[node].reset();
    }
  }
  // At once.
  static void AtEachNode(const std::function<void(int node)>& body) {
    std::vector<std::thread> threads;
    for (int node = 0; node < kNodes; ++node) threads.emplace_back([&body, node] { body(node); });
    for (std::thread& thread : threads) thread.join();
  }

  // One group over both ranks, or a replica for each.
  static v1::ModelSpec Spec(int shard_size = kNodes) {
    ModelSpec spec = checkpoint::TallSpec(5000);
    spec.shard_size = shard_size;
    return ModelSpecToProto(spec);
  }
  std::string Write(int64_t step, uint64_t seed = 1) {
    ++saves_written_;
    return SavedModel(checkpoint::TallSpec(5000), seed)
        .Write(absl::StrCat(saves_.path(), "/", checkpoint::ModelFolderName(kName)),
               {.world = {3, 3},
                .step = step,
                .save_serial = saves_written_,
                .history = absl::uint128(saves_written_) << 100});
  }
  // The first bytes of the data of the last rank that has saved: node 1's rows where there is one group.
  static void Damage(const std::string& folder) {
    const std::string file = folder + "/rank-00002-of-00003.safetensors";
    std::string bytes = checkpoint::ReadText(file);
    const auto header = static_cast<uint8_t>(bytes[0]) + 256 * static_cast<uint8_t>(bytes[1]);
    bytes[8 + header] ^= 1;
    checkpoint::WriteText(file, bytes);
  }

  // `checkpoint` empty: the call says nothing.
  absl::StatusOr<v1::CreateModelResponse> Create(int node, const std::string& checkpoint,
                                                 const v1::ModelSpec& spec = Spec()) {
    v1::CreateModelRequest request;
    *request.mutable_spec() = spec;
    if (!checkpoint.empty()) request.mutable_restore()->set_checkpoint(checkpoint);
    return clients_[node]->Call(clients_[node]->trainer(), &v1::TrainerService::Stub::CreateModel, request);
  }
  using Answers = std::vector<absl::StatusOr<v1::CreateModelResponse>>;
  Answers CreateAtBoth(const std::string& checkpoint, const v1::ModelSpec& spec = Spec()) {
    Answers answers(kNodes);
    AtEachNode([&](int node) { answers[node] = Create(node, checkpoint, spec); });
    return answers;
  }
  absl::StatusOr<v1::RestoreSummary> Restore(int node, const std::string& checkpoint) {
    v1::RestoreModelRequest request;
    request.set_model(kName);
    request.mutable_source()->set_checkpoint(checkpoint);
    const auto context = clients_[node]->Context();
    const auto reader = clients_[node]->admin().RestoreModel(context.get(), request);
    v1::RestoreModelResponse last;
    while (reader->Read(&last)) {
    }
    const absl::Status status = FromGrpc(reader->Finish());
    if (!status.ok()) return status;
    return last.summary();
  }
  void Delete(int node) {
    v1::DeleteModelRequest request;
    request.set_model(kName);
    EXPECT_OK(
        clients_[node]->Call(clients_[node]->trainer(), &v1::TrainerService::Stub::DeleteModel, request).status());
  }
  v1::ListModelsResponse List(int node) {
    auto response =
        clients_[node]->Call(clients_[node]->admin(), &v1::AdminService::Stub::ListModels, v1::ListModelsRequest());
    EXPECT_OK(response.status());
    return *std::move(response);
  }
  std::vector<v1::ModelSummary> Models(int node) {
    const v1::ListModelsResponse response = List(node);
    return {response.models().begin(), response.models().end()};
  }
  // Both models are at that step, in one history.
  void ExpectAlike(int64_t step) {
    const std::vector<v1::ModelSummary> zero = Models(0), one = Models(1);
    ASSERT_THAT(zero, SizeIs(1));
    ASSERT_THAT(one, SizeIs(1));
    EXPECT_EQ(zero[0].commit_number(), step);
    EXPECT_EQ(one[0].commit_number(), step);
    EXPECT_EQ(zero[0].history_id(), one[0].history_id());
  }

  const test::TemporaryDirectory saves_;
  const test::TemporaryDirectory sockets_[kNodes];
  std::unique_ptr<Daemon> daemons_[kNodes];
  std::unique_ptr<DaemonClient> clients_[kNodes];
  int saves_written_ = 0;
};

TEST_F(WorldRestoreCallsTest, NodeZeroRestoresForBoth) {
  Write(12);
  for (const auto& created : CreateAtBoth("")) ASSERT_OK(created);
  ASSERT_OK_AND_ASSIGN(const v1::RestoreSummary summary, Restore(0, "latest"));
  EXPECT_EQ(summary.step(), 12);
  ExpectAlike(12);
  EXPECT_EQ(Models(1)[0].history_id(), summary.history_id());
  EXPECT_THAT(Restore(1, "latest").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("only node 0 starts restores")));
}

TEST_F(WorldRestoreCallsTest, ReplicasHoldTheSameState) {
  Write(12);
  for (const auto& created : CreateAtBoth("latest", Spec(1))) ASSERT_OK(created);
  ExpectAlike(12);
  EXPECT_EQ(clients_[0]->StateHash(kName), clients_[1]->StateHash(kName));
}

TEST_F(WorldRestoreCallsTest, CreationsBeginWithTheCheckpointThatNodeZeroChooses) {
  Write(12);
  Write(13);
  Answers answers(kNodes);
  AtEachNode([&](int node) { answers[node] = Create(node, node == 0 ? "12" : "latest"); });
  for (const auto& created : answers) {
    ASSERT_OK(created);
    EXPECT_TRUE(created->created());
    EXPECT_EQ(created->restored().step(), 12);
    EXPECT_EQ(created->restored().history_id(), answers[0]->restored().history_id());
  }
  ExpectAlike(12);
}

TEST_F(WorldRestoreCallsTest, ACreationWithoutAWordOfACheckpointFollowsNodeZeroAllTheSame) {
  Write(12);
  Answers answers(kNodes);
  AtEachNode([&](int node) { answers[node] = Create(node, node == 0 ? "latest" : ""); });
  for (const auto& created : answers) ASSERT_OK(created);
  ExpectAlike(12);
}

TEST_F(WorldRestoreCallsTest, AModelThatAnotherDaemonHasAlreadyIsRestored) {
  Write(12);
  ASSERT_OK(Create(1, ""));
  ASSERT_OK(Create(0, "latest"));
  ExpectAlike(12);
}

TEST_F(WorldRestoreCallsTest, WithoutACheckpointLatestIsAFreshStartOfBoth) {
  for (const auto& created : CreateAtBoth("latest")) {
    ASSERT_OK(created);
    EXPECT_TRUE(created->created());
    EXPECT_FALSE(created->has_restored());
  }
  EXPECT_EQ(Models(0)[0].commit_number(), 0);
  EXPECT_EQ(Models(1)[0].commit_number(), 0);
}

TEST_F(WorldRestoreCallsTest, ADaemonThatComesLateBeginsFreshAsNodeZeroHas) {
  ASSERT_OK(Create(0, ""));
  Write(12);
  ASSERT_OK_AND_ASSIGN(const v1::CreateModelResponse created, Create(1, "latest"));
  EXPECT_TRUE(created.created());
  EXPECT_FALSE(created.has_restored());
}

TEST_F(WorldRestoreCallsTest, TheFlagHoldsWhereTheCallSaysNothing) {
  Write(12);
  Start([](DaemonConfig& config) { config.restore = "latest"; });
  for (const auto& created : CreateAtBoth("")) {
    ASSERT_OK(created);
    EXPECT_EQ(created->restored().step(), 12);
  }
  ExpectAlike(12);
}

TEST_F(WorldRestoreCallsTest, SeveralTrainersOfADaemonGetOneModel) {
  Write(12);
  std::vector<absl::StatusOr<v1::CreateModelResponse>> answers(4 * kNodes);
  std::vector<std::thread> trainers;
  for (size_t i = 0; i < answers.size(); ++i) {
    trainers.emplace_back([&, i] { answers[i] = Create(static_cast<int>(i) % kNodes, "latest"); });
  }
  for (std::thread& trainer : trainers) trainer.join();
  int created = 0;
  for (const auto& answer : answers) {
    ASSERT_OK(answer);
    created += answer->created() ? 1 : 0;
  }
  EXPECT_EQ(created, kNodes);
  ExpectAlike(12);
}

TEST_F(WorldRestoreCallsTest, RowsThatAreDamagedLeaveNoModelAnywhere) {
  Damage(Write(12));
  for (const auto& created : CreateAtBoth("12")) {
    EXPECT_THAT(created.status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank-00002-of-00003")));
  }
  EXPECT_THAT(Models(0), IsEmpty());
  EXPECT_THAT(Models(1), IsEmpty());
  Write(13);
  for (const auto& created : CreateAtBoth("13")) ASSERT_OK(created);
  ExpectAlike(13);
}

TEST_F(WorldRestoreCallsTest, ADaemonWithAnotherSpecLeavesNoModelAnywhere) {
  Write(12);
  Answers answers(kNodes);
  AtEachNode([&](int node) { answers[node] = Create(node, "latest", Spec(node + 1)); });
  for (const auto& created : answers) {
    EXPECT_THAT(created.status(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("node 0's spec")));
  }
  EXPECT_THAT(Models(0), IsEmpty());
  EXPECT_THAT(Models(1), IsEmpty());
}

// It fails before there is a model that could follow node 0's order.
TEST_F(WorldRestoreCallsTest, ADaemonWithoutRoomForTheModelSaysSoAtOnce) {
  Write(12);
  Start([](DaemonConfig& config) { config.memory_limit_bytes = config.node == 1 ? 1 : 0; });
  const Answers answers = CreateAtBoth("latest");
  EXPECT_THAT(answers[0].status(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("node 1: ")));
  EXPECT_THAT(answers[1].status(), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(Models(0), IsEmpty());
}

TEST_F(WorldRestoreCallsTest, ACreationThatNobodyJoinsEndsAtTheTimeout) {
  Write(12);
  Start([](DaemonConfig& config) { config.restore_timeout = absl::Milliseconds(200); });
  EXPECT_THAT(Create(1, "latest").status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("node 0 has not chosen a checkpoint")));
  EXPECT_THAT(Create(0, "latest").status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("node 1 is not ready to begin")));
  EXPECT_THAT(Models(0), IsEmpty());
  EXPECT_THAT(Models(1), IsEmpty());
}

// Begins more creations than node 0 carries out at a time. The model is not created at the other daemon.
TEST_F(WorldRestoreCallsTest, CreationsWhoseTrainersAreGoneHoldUpNobody) {
  Write(12);
  std::vector<std::unique_ptr<grpc::ClientContext>> calls(20);
  for (auto& call : calls) call = clients_[0]->Context();
  std::vector<std::thread> trainers;
  for (auto& call : calls) {
    trainers.emplace_back([&] {
      v1::CreateModelRequest request;
      *request.mutable_spec() = Spec();
      request.mutable_restore()->set_checkpoint("latest");
      v1::CreateModelResponse response;
      EXPECT_EQ(clients_[0]->trainer().CreateModel(call.get(), request, &response).error_code(),
                grpc::StatusCode::CANCELLED);
    });
  }
  // One of them has begun.
  while (Models(0).empty()) std::this_thread::yield();
  for (const auto& call : calls) call->TryCancel();
  for (std::thread& trainer : trainers) trainer.join();
  v1::ModelSpec other = Spec();
  other.set_name("other");
  EXPECT_OK(Create(0, "", other).status());
  const std::vector<v1::ModelSummary> models = Models(0);
  ASSERT_THAT(models, SizeIs(1));
  EXPECT_EQ(models[0].name(), "other");
}

TEST_F(WorldRestoreCallsTest, ADaemonThatHasLostAModelTakesAllBackToTheLastCheckpoint) {
  Write(12);
  for (const auto& created : CreateAtBoth("latest")) ASSERT_OK(created);
  Delete(1);
  ASSERT_OK_AND_ASSIGN(const v1::CreateModelResponse created, Create(1, "latest"));
  EXPECT_EQ(created.restored().step(), 12);
  // Node 0 is through when it has heard that the other one is.
  while (!Models(0)[0].has_rollback()) std::this_thread::yield();
  ExpectAlike(12);
  for (int node = 0; node < kNodes; ++node) {
    ASSERT_TRUE(Models(node)[0].has_rollback());
    EXPECT_EQ(Models(node)[0].rollback().commit_number(), 12);
    EXPECT_EQ(Models(node)[0].rollback().from_commit_number(), node == 0 ? 12 : 0);
  }
}

TEST_F(WorldRestoreCallsTest, AModelThatNodeZeroHasTrainedIsNotReplacedByACheckpointOfAnotherHistory) {
  Write(12);
  for (const auto& created : CreateAtBoth("latest")) ASSERT_OK(created);
  Delete(1);
  Write(13);
  EXPECT_THAT(Create(1, "latest").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("commit 12"), HasSubstr("delete it"), HasSubstr("got step 13"))));
  // By hand: a model like node 0's, which then restores both.
  ASSERT_OK(Create(1, ""));
  ASSERT_OK(Restore(0, "12"));
  ExpectAlike(12);
}

TEST_F(WorldRestoreCallsTest, NodeZeroListsAModelThatOnlyTrainersOfAnotherDaemonWaitFor) {
  ASSERT_OK(Create(1, ""));
  TestSession trainer(sockets_[1].path());
  trainer.Attach(MakeAttach(kName, 1));
  ASSERT_TRUE(trainer.Read().has_accepted());
  const SteadyTime end = SteadyDeadline(absl::Seconds(30));
  while (List(0).awaited_models().empty() && SteadyNow() < end) std::this_thread::yield();
  const v1::ListModelsResponse zero = List(0);
  EXPECT_THAT(zero.models(), IsEmpty());
  ASSERT_THAT(zero.awaited_models(), SizeIs(1));
  EXPECT_EQ(zero.awaited_models(0).name(), kName);
  EXPECT_THAT(zero.awaited_models(0).why_no_epoch(), HasSubstr("1 of 2"));
  EXPECT_EQ(Models(1)[0].why_no_epoch(), "waits: node 0 says why");
}

TEST_F(WorldRestoreCallsTest, ADaemonThatStopsEndsCreationsThatWait) {
  Write(12);
  std::thread creation([&] {
    EXPECT_THAT(Create(1, "latest").status().code(),
                testing::AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kCancelled));
  });
  daemons_[1]->Stop();
  creation.join();
}

}  // namespace
}  // namespace paramshard::server
