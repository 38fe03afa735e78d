// Saves of a world of several daemons: node 0 leads, every daemon writes its part, or there is no checkpoint.

#include <fcntl.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/checkpoint/reader.h"
#include "common/checkpoint/step_folder.h"
#include "common/checkpoint/verification.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "paramshard/v1/cluster.grpc.pb.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/saver.h"
#include "server/world/cluster_messages.h"
#include "server/world/coordinator_cluster.h"
#include "tests/server/base/manual_clock.h"
#include "tests/server/base/simulated_disk.h"
#include "tests/server/models/daemons.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kLong = absl::Seconds(30);

// A disk that fails to open what has this in its path, and tells what is opened.
class OpenCalls final : public QuickCalls {
 public:
  void Refuse(const std::string& part_of_path) {
    absl::MutexLock lock(&mu_);
    refused_ = part_of_path;
  }
  void OnOpen(std::function<void(const std::string& path)> hook) {
    absl::MutexLock lock(&mu_);
    hook_ = std::move(hook);
  }

  int Open(const std::string& path, int flags, mode_t mode) override {
    {
      absl::MutexLock lock(&mu_);
      if (hook_) hook_(path);
      if (!refused_.empty() && absl::StrContains(path, refused_)) {
        errno = EIO;
        return -1;
      }
    }
    return DiskCalls::Open(path, flags, mode);
  }

 private:
  absl::Mutex mu_;
  std::string refused_;
  std::function<void(const std::string& path)> hook_;
};

v1::ModelSpec SpecOf(int shard_size) {
  v1::ModelSpec spec = MakeSpec("m", {MakeUnit("a", {MakeParameter("a.w", {24, 8})}),
                                      MakeUnit("b", {MakeParameter("b.w", {10, 16}, v1::FORMAT_BF16)})});
  spec.set_shard_size(shard_size);
  return spec;
}

// A world with a folder, its savers and its daemons.
class SavedWorld {
 public:
  SavedWorld(const std::vector<int>& device_counts, int shard_size, const SavePolicy& policy = {})
      : calls_(device_counts.size()), before_copy_(device_counts.size(), [](int) {}) {
    Daemons::Options options{.save_dir = root_.path()};
    for (size_t node = 0; node < device_counts.size(); ++node) {
      savers_.push_back(std::make_unique<Savers>(
          Saver::Options{.root = root_.path(),
                         .policy = policy,
                         .calls = &calls_[node],
                         .clock = &clock_,
                         .now = [] { return absl::FromUnixSeconds(7); },
                         .before_copy = [this, node](int rank) { before_copy_[node](rank); }}));
      options.savers.push_back(savers_.back().get());
    }
    daemons_ = std::make_unique<Daemons>(device_counts, options);
    daemons_->Create(SpecOf(shard_size));
  }
  ~SavedWorld() { daemons_.reset(); }

  Daemons& daemons() { return *daemons_; }
  ModelSaver& saver(int node) { return *daemons_->model(node).saver(); }
  OpenCalls& calls(int node) { return calls_[node]; }
  ManualClock& clock() { return clock_; }
  void BeforeCopy(int node, std::function<void(int rank)> hook) { before_copy_[node] = std::move(hook); }

  void Step(int count = 1) {
    for (int i = 0; i < count; ++i) {
      for (int unit = 0; unit < 2; ++unit) {
        daemons_->Push(unit, [&](int rank) {
          std::vector<float> gradients(unit == 0 ? 24 * 8 : 10 * 16);
          for (size_t j = 0; j < gradients.size(); ++j) gradients[j] = static_cast<float>((j + rank) % 5) - 2;
          return gradients;
        });
      }
      daemons_->Commit();
    }
  }
  // At another node than 0 the order may still be on its way.
  SaveRecord Await(int node, int64_t number) {
    const SteadyTime end = SteadyDeadline(kLong);
    while (static_cast<int64_t>(saver(node).records().size()) < number && SteadyNow() < end) std::this_thread::yield();
    auto record = saver(node).Await(number, SteadyDeadline(kLong));
    EXPECT_OK(record);
    EXPECT_TRUE(record.ok() && IsOver(record->state));
    return record.ok() ? *std::move(record) : SaveRecord();
  }
  // A save by a call to node 0, and its end.
  SaveRecord Save() {
    const auto begun = saver(0).Request();
    EXPECT_OK(begun);
    return begun.ok() ? Await(0, begun->number) : SaveRecord();
  }
  std::vector<std::string> Steps() const { return *checkpoint::ListStepFolders(folder()); }
  std::vector<std::string> Leftovers() const { return *checkpoint::ListTemporaryFolders(folder()); }

 private:
  std::string folder() const { return ModelFolder(root_.path(), "m"); }

  const test::TemporaryDirectory root_;
  std::vector<OpenCalls> calls_;
  ManualClock clock_;
  std::vector<std::function<void(int rank)>> before_copy_;
  std::vector<std::unique_ptr<Savers>> savers_;
  std::unique_ptr<Daemons> daemons_;
};

checkpoint::Reader Verified(const std::string& path) {
  const auto verified = checkpoint::VerifyCheckpoint(path, {.owner = geteuid()}, [](int64_t, int64_t) {});
  EXPECT_TRUE(verified.ok());
  auto reader = checkpoint::Reader::Open(path, {.owner = geteuid()});
  EXPECT_OK(reader);
  return *std::move(reader);
}

struct WorldCase {
  std::string name;
  std::vector<int> device_counts;
  int shard_size = 0;
};

class WorldSavesTest : public testing::TestWithParam<WorldCase> {
 protected:
  // Saves the state after two of five steps.
  static SaveRecord SavedWhileTraining(SavedWorld& world) {
    world.daemons().Attach();
    world.Step(2);
    const SaveRecord record = world.Await(0, 1);
    world.Step();
    return record;
  }
};

TEST_P(WorldSavesTest, ContentIsThatOfOneDaemonWithTheSameRanks) {
  const WorldCase& param = GetParam();
  SavedWorld world(param.device_counts, param.shard_size, {.every_commits = 2});
  const SaveRecord record = SavedWhileTraining(world);
  ASSERT_EQ(record.state, SaveState::kPublished) << record.status;
  EXPECT_EQ(record.step, 2);
  // Replicas take the same steps: the state is that of any world with the same ranks, however they share it.
  const int ranks = world.daemons().ranks();
  SavedWorld one({ranks}, ranks, {.every_commits = 2});
  const SaveRecord expected = SavedWhileTraining(one);
  ASSERT_EQ(expected.state, SaveState::kPublished) << expected.status;

  const checkpoint::Reader saved = Verified(record.path);
  const checkpoint::Reader same = Verified(expected.path);
  if (param.shard_size == ranks) {
    EXPECT_EQ(saved.manifest().files, same.manifest().files);
  }
  EXPECT_EQ(saved.manifest().tensors, same.manifest().tensors);
  EXPECT_THAT(world.Leftovers(), IsEmpty());
}

TEST_P(WorldSavesTest, EveryDaemonKnowsWhatCameOfTheSave) {
  SavedWorld world(GetParam().device_counts, GetParam().shard_size, {.every_commits = 2});
  const SaveRecord record = SavedWhileTraining(world);
  for (int node = 1; node < world.daemons().nodes(); ++node) {
    const SaveRecord other = world.Await(node, 1);
    EXPECT_EQ(other.state, SaveState::kPublished) << other.status;
    EXPECT_EQ(other.step, 2);
    EXPECT_EQ(other.reason, SaveReason::kCommits);
    EXPECT_EQ(other.path, record.path);
    EXPECT_EQ(other.size_bytes, record.size_bytes);
    EXPECT_EQ(other.history, record.history);
    EXPECT_EQ(world.saver(node).counts().published, 1);
  }
}

TEST_P(WorldSavesTest, EveryDaemonHearsThatAStateIsSavedAlready) {
  SavedWorld world(GetParam().device_counts, GetParam().shard_size);
  world.daemons().Attach();
  world.Step();
  const SaveRecord first = world.Save();
  ASSERT_EQ(first.state, SaveState::kPublished) << first.status;
  EXPECT_EQ(world.Save().state, SaveState::kAlreadySaved);
  for (int node = 0; node < world.daemons().nodes(); ++node) {
    const SaveRecord again = world.Await(node, 2);
    EXPECT_EQ(again.state, SaveState::kAlreadySaved) << again.status;
    EXPECT_OK(again.status);
    EXPECT_EQ(again.path, first.path);
    EXPECT_EQ(world.saver(node).counts().abandoned, 0);
  }
  EXPECT_THAT(world.Leftovers(), IsEmpty());
  world.Step();
  EXPECT_EQ(world.Save().state, SaveState::kPublished) << "of the next commit";
}

TEST_P(WorldSavesTest, AWorldWithoutTrainersIsSavedByACall) {
  SavedWorld world(GetParam().device_counts, GetParam().shard_size);
  const SaveRecord record = world.Save();
  ASSERT_EQ(record.state, SaveState::kPublished) << record.status;
  EXPECT_EQ(Verified(record.path).common().commit_number, 0);
  EXPECT_EQ(world.Save().state, SaveState::kAlreadySaved) << "the same step again";
  EXPECT_THAT(world.Leftovers(), IsEmpty());
}

TEST_P(WorldSavesTest, TrainersThatWaitHoldUpNoSave) {
  SavedWorld world(GetParam().device_counts, GetParam().shard_size);
  world.daemons().Attach();
  for (int step = 1; step < 4; ++step) {
    world.Step();
    const SaveRecord record = world.Save();
    ASSERT_EQ(record.state, SaveState::kPublished) << record.status;
    EXPECT_EQ(record.step, step);
    Verified(record.path);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, WorldSavesTest,
                         testing::Values(WorldCase{"TwoShared", {1, 1}, 2}, WorldCase{"TwoReplicas", {1, 1}, 1},
                                         WorldCase{"ThreeShared", {1, 2, 1}, 4},
                                         WorldCase{"TwoReplicasOfTwo", {2, 2}, 2}),
                         [](const auto& info) { return info.param.name; });

// Several saves in a row, of which every one is ordered while the next commits come.
TEST(WorldSavesOrderTest, EveryDaemonHoldsTheStateOfTheSameCommit) {
  SavedWorld world({1, 1, 1}, 3, {.every_commits = 1, .keep = {.newest = 100}});
  world.daemons().Attach();
  world.Step(20);
  std::vector<SaveRecord> records = world.saver(0).records();
  for (const SaveRecord& begun : records) {
    if (begun.state == SaveState::kSkipped) continue;
    const SaveRecord record = world.Await(0, begun.number);
    ASSERT_EQ(record.state, SaveState::kPublished) << record.status;
    EXPECT_EQ(Verified(record.path).common().commit_number, record.step);
  }
  EXPECT_EQ(world.saver(0).counts().abandoned, 0);
}

// The step after the save waits for the slowest daemon's copy alone at that daemon, and for its vote everywhere.
TEST(WorldSavesOrderTest, ADaemonThatCopiesLateSavesTheOrderedStateAllTheSame) {
  SavedWorld world({1, 1}, 2, {.every_commits = 2});
  absl::Notification go_on;
  world.BeforeCopy(1, [&](int) { go_on.WaitForNotification(); });
  world.daemons().Attach();
  world.Step(2);
  std::thread training([&] { world.Step(2); });
  go_on.Notify();
  training.join();
  const SaveRecord record = world.Await(0, 1);
  ASSERT_EQ(record.state, SaveState::kPublished) << record.status;
  EXPECT_EQ(Verified(record.path).common().commit_number, 2);
}

TEST(WorldSavesFaultsTest, ACallToAnotherNodeIsRefusedAndNamesNodeZero) {
  SavedWorld world({1, 1}, 2);
  EXPECT_THAT(world.saver(1).Request().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("only node 0 starts saves")));
}

TEST(WorldSavesFaultsTest, ADiskThatFailsAtOneDaemonAbandonsThatSaveAlone) {
  SavedWorld world({1, 1}, 2);
  world.calls(1).Refuse("rank-00001");
  const SaveRecord failed = world.Save();
  EXPECT_EQ(failed.state, SaveState::kAbandoned);
  EXPECT_THAT(failed.status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 1: ")));
  EXPECT_THAT(failed.status.message(), HasSubstr("rank-00001-of-00002.safetensors: create failed"));
  EXPECT_THAT(world.Steps(), IsEmpty());
  EXPECT_EQ(world.Await(1, 1).state, SaveState::kAbandoned);
  world.calls(1).Refuse("");
  EXPECT_EQ(world.Save().state, SaveState::kPublished);
  EXPECT_THAT(world.Leftovers(), IsEmpty());
  EXPECT_EQ(world.Await(1, 2).state, SaveState::kPublished);
}

TEST(WorldSavesFaultsTest, ADiskThatFailsAtNodeZeroEndsTheSaveEverywhere) {
  SavedWorld world({1, 1}, 2);
  world.calls(0).Refuse("rank-00000");
  EXPECT_EQ(world.Save().state, SaveState::kAbandoned);
  const SaveRecord other = world.Await(1, 1);
  EXPECT_EQ(other.state, SaveState::kAbandoned);
  EXPECT_THAT(other.status.message(), HasSubstr("rank-00000-of-00002.safetensors: create failed"));
}

TEST(WorldSavesFaultsTest, ALostDaemonAbandonsTheSaveAndIsNamed) {
  SavedWorld world({1, 1}, 2);
  absl::Notification copies, go_on;
  world.BeforeCopy(1, [&](int) {
    copies.Notify();
    go_on.WaitForNotification();
  });
  ASSERT_OK_AND_ASSIGN(const SaveRecord begun, world.saver(0).Request());
  copies.WaitForNotification();
  world.daemons().Stop(1);
  const SaveRecord record = world.Await(0, begun.number);
  go_on.Notify();
  EXPECT_EQ(record.state, SaveState::kAbandoned);
  EXPECT_THAT(record.status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 1: its daemon was lost")));
  EXPECT_THAT(world.Steps(), IsEmpty());
  EXPECT_EQ(world.Await(1, 1).state, SaveState::kAbandoned);
  const SaveRecord next = world.Save();
  EXPECT_THAT(next.status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 1 (rank 1) is not here")));
}

TEST(WorldSavesFaultsTest, ADaemonWithoutThePartAtTheDeadlineIsNamed) {
  SavedWorld world({1, 1}, 2, {.timeout = absl::Minutes(1)});
  absl::Notification go_on;
  world.BeforeCopy(1, [&](int) { go_on.WaitForNotification(); });
  // Node 0 has written all that it writes.
  world.calls(0).OnOpen([&](const std::string& path) {
    if (absl::EndsWith(path, "part-00000.json")) world.clock().Advance(absl::Minutes(1));
  });
  const SaveRecord record = world.Save();
  go_on.Notify();
  EXPECT_EQ(record.state, SaveState::kAbandoned);
  EXPECT_THAT(record.status, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("no part from node 1")));
  EXPECT_EQ(world.Await(1, 1).state, SaveState::kAbandoned);
}

TEST(WorldSavesFaultsTest, StatesThatDifferAreNotSaved) {
  SavedWorld world({1, 1}, 2);
  ASSERT_OK(world.daemons().model(1).changes().Import({.commit_number = 5}, [] { return absl::OkStatus(); }));
  const SaveRecord record = world.Save();
  EXPECT_THAT(record.status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("node 1: want commit 0 (version 0)")));
  ASSERT_OK(world.daemons().model(1).changes().Import({.commit_number = 0}, [] { return absl::OkStatus(); }));
  EXPECT_THAT(world.Save().status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("node 1: want history")));
}

TEST(WorldSavesFaultsTest, ADaemonWithoutTheModelIsNamed) {
  SavedWorld world({1, 1}, 2);
  ASSERT_OK(world.daemons().store(1).Delete("m", ""));
  EXPECT_THAT(world.Save().status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("node 1: ")));
}

// Node 0 of a world of two, with a node 1 that says whatever a test wants.
class HostileNodeTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(CoordinatorNode zero,
                         MakeCoordinatorCluster({.nodes = 2, .devices = 1, .terms = {.save_dir = root_.path()}}));
    zero_.emplace(std::move(zero));
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(zero_->service.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::ClusterService::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
    stream_ = stub_->Join(&context_);
    ASSERT_TRUE(stream_->Write(HelloMessage(1, 2, 1, {.save_dir = root_.path()})));
    ASSERT_OK(zero_->cluster->AwaitWorld(kLong));
    savers_ = std::make_unique<Savers>(Saver::Options{.root = root_.path(), .calls = &calls_});
    const World world{.cluster = zero_->cluster.get(), .devices = {device_.get()}, .first_rank = 0, .world_size = 2};
    store_ = std::make_unique<ModelStore>(
        ModelStore::Options{.world = world, .save_dir = root_.path(), .savers = savers_.get()});
    ASSERT_OK_AND_ASSIGN(const ModelStore::Created created, store_->CreateOrJoin(Parse(SpecOf(2))));
    model_ = created.model;
  }
  void TearDown() override {
    model_.reset();
    store_.reset();
    context_.TryCancel();
    (void)stream_->Finish();
    zero_->cluster->Stop();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  // Begins a save; returns when node 1 may write, with the save's id.
  absl::uint128 Begin() {
    const auto begun = model_->saver()->Request();
    EXPECT_OK(begun);
    number_ = begun.ok() ? begun->number : 0;
    v1::JoinResponse response;
    while (stream_->Read(&response)) {
      const auto message = FromProto(response);
      if (!message.has_value() || !std::holds_alternative<SaveMessage>(*message)) continue;
      const auto* const save = &std::get<SaveMessage>(*message);
      if (const auto* const order = std::get_if<SaveOrder>(&save->what); order != nullptr) order_ = *order;
      if (const auto* const go = std::get_if<SavePermission>(&save->what); go != nullptr) return go->id;
    }
    ADD_FAILURE() << "no permission";
    return 0;
  }
  void Say(const SavePart& part) {
    EXPECT_TRUE(stream_->Write(ToProto(FromNode(SaveMessage{.model = "m", .what = part}))));
  }
  // The hash of what it writes as the part of node 1.
  absl::uint128 WritePart(const checkpoint::Part& part) {
    const std::string folder =
        absl::StrCat(ModelFolder(root_.path(), "m"), "/",
                     checkpoint::TemporaryFolderName(0, model_->state().history().id.value, order_.id));
    const std::string text = checkpoint::SerializePart(part);
    EXPECT_OK(Disk(&calls_).WriteFile(absl::StrCat(folder, "/", checkpoint::PartFileName(1)), text));
    return checkpoint::HashBytes(text);
  }
  void ExpectAbandoned(const std::string& why) {
    const auto record = model_->saver()->Await(number_, SteadyDeadline(kLong));
    ASSERT_OK(record);
    EXPECT_EQ(record->state, SaveState::kAbandoned);
    EXPECT_THAT(std::string(record->status.message()), HasSubstr(why));
    EXPECT_THAT(*checkpoint::ListStepFolders(ModelFolder(root_.path(), "m")), IsEmpty());
    EXPECT_THAT(*checkpoint::ListTemporaryFolders(ModelFolder(root_.path(), "m")), IsEmpty());
  }

  const test::TemporaryDirectory root_;
  QuickCalls calls_;
  const std::unique_ptr<ComputeDevice> device_ = MakeCpuDevice(0);
  std::optional<CoordinatorNode> zero_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ClusterService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::JoinRequest, v1::JoinResponse>> stream_;
  std::unique_ptr<Savers> savers_;
  std::unique_ptr<ModelStore> store_;
  std::shared_ptr<Model> model_;
  SaveOrder order_;
  int64_t number_ = 0;
};

TEST_F(HostileNodeTest, APartOfAnotherSaveCountsForNothing) {
  const absl::uint128 id = Begin();
  EXPECT_EQ(id, order_.id);
  Say({.id = id + 1, .hash = 5});
  Say({.id = 0, .status = absl::InternalError("of none")});
  Say({.id = id, .status = absl::DataLossError("its own words")});
  ExpectAbandoned("node 1: its own words");
}

TEST_F(HostileNodeTest, APartWithoutAFileIsRefused) {
  Say({.id = Begin(), .hash = 5});
  ExpectAbandoned("part-00001.json: not found");
}

TEST_F(HostileNodeTest, APartThatIsNotTheReportedOneIsRefused) {
  const absl::uint128 id = Begin();
  const absl::uint128 hash = WritePart({.node = 1});
  Say({.id = id, .hash = hash + 1});
  ExpectAbandoned("part-00001.json: want hash ");
}

TEST_F(HostileNodeTest, OfTwoPartsTheFirstCounts) {
  const absl::uint128 id = Begin();
  Say({.id = id, .hash = 5});
  Say({.id = id, .status = absl::DataLossError("the second")});
  ExpectAbandoned("part-00001.json: not found");
}

TEST_F(HostileNodeTest, APartWithoutItsRanksFilesIsRefused) {
  const absl::uint128 id = Begin();
  Say({.id = id, .hash = WritePart({.node = 1})});
  ExpectAbandoned("rank");
}

TEST_F(HostileNodeTest, FilesThatAreNotOfTheReportedSizeAreRefused) {
  const absl::uint128 id = Begin();
  checkpoint::Part part{.node = 1};
  part.files.push_back({.name = "rank-00001-of-00002.safetensors", .size_bytes = 1 << 20, .header_bytes = 8});
  Say({.id = id, .hash = WritePart(part)});
  ExpectAbandoned("");
}

TEST_F(HostileNodeTest, WordsWithoutEndAreCut) {
  Say({.id = Begin(), .status = absl::DataLossError(std::string(1 << 20, 'x'))});
  ExpectAbandoned("node 1: xxx");
  EXPECT_LT(model_->saver()->records().back().status.message().size(), 2000);
}

TEST_F(HostileNodeTest, ALatePartHarmsNoLaterSave) {
  const absl::uint128 first = Begin();
  Say({.id = first, .status = absl::DataLossError("first")});
  ExpectAbandoned("first");
  const absl::uint128 second = Begin();
  Say({.id = first, .hash = 5});
  Say({.id = second, .status = absl::DataLossError("second")});
  ExpectAbandoned("second");
}

TEST(WorldSavesDrainTest, ADaemonThatDrainsAloneHasItsStateSaved) {
  SavedWorld world({1, 1}, 2);
  world.daemons().Attach();
  world.Step();
  EXPECT_FALSE(world.saver(1).IsDrained());
  world.daemons().store(1).Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"));
  const SaveRecord record = world.Await(0, 1);
  EXPECT_EQ(record.state, SaveState::kPublished) << record.status;
  EXPECT_EQ(record.reason, SaveReason::kDrain);
  EXPECT_EQ(record.step, 1);
  EXPECT_TRUE(world.saver(1).IsDrained());
  world.daemons().store(0).Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"));
  EXPECT_THAT(world.saver(0).records(), SizeIs(1)) << "the step is saved";
  EXPECT_THAT(world.saver(1).records(), SizeIs(1));
}

TEST(WorldSavesDrainTest, DaemonsThatDrainAtOnceSaveOnce) {
  SavedWorld world({1, 1, 1}, 3);
  world.daemons().Attach();
  world.Step();
  std::vector<std::thread> drains;
  for (int node = 0; node < 3; ++node) {
    drains.emplace_back(
        [&world, node] { world.daemons().store(node).Drain(SteadyDeadline(kLong), absl::UnavailableError("drain")); });
  }
  for (std::thread& drain : drains) drain.join();
  ASSERT_THAT(world.Steps(), SizeIs(1));
  EXPECT_EQ(world.saver(0).counts().published, 1);
  EXPECT_EQ(world.saver(0).counts().abandoned, 0);
}

TEST(WorldSavesDrainTest, ADaemonThatDrainsBehindNodeZeroWaitsForNothing) {
  SavedWorld world({1, 1}, 2);
  world.daemons().Attach();
  world.Step();
  world.daemons().store(0).Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"));
  ASSERT_THAT(world.Steps(), SizeIs(1));
  world.Await(1, 1);
  world.daemons().Stop(0);
  world.daemons().store(1).Drain(SteadyDeadline(kLong), absl::UnavailableError("drain"));
  EXPECT_EQ(world.saver(1).counts().published, 1);
}

}  // namespace
}  // namespace paramshard::server
