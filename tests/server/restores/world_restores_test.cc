// Restores of a world of several daemons: node 0 leads, and the state is the checkpoint's at every daemon, or none that
// anybody would train on.
#include "server/restores/world_restores.h"

#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "proto/checkpoint/reader.h"
#include "server/restores/checkpoint_choice.h"
#include "server/restores/model_restore.h"
#include "server/saves/saver.h"
#include "tests/proto/checkpoint/saved_model.h"
#include "tests/server/store/daemons.h"
#include "tests/server/store/manual_clock.h"
#include "tests/server/store/test_spec.h"
#include "tests/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(30);
constexpr int kRows = 24;

v1::ModelSpec SpecOf(int shard_size, int rows = kRows) {
  v1::ModelSpec spec = MakeSpec("m", {MakeUnit("a", {MakeParameter("a.w", {rows, 8})}),
                                      MakeUnit("b", {MakeParameter("b.w", {10, 16}, v1::FORMAT_BF16)})});
  spec.set_shard_size(shard_size);
  return spec;
}

struct WorldCase {
  std::string name;
  std::vector<int> device_counts;
  int shard_size = 0;
};

// A world of daemons that save into a folder and restore from it.
class RestoredWorld {
 public:
  using Hook = std::function<void(WorldRestores::Point point)>;

  RestoredWorld(const std::string& root, const WorldCase& world) : hooks_(world.device_counts.size()) {
    Daemons::Options options{.save_dir = root};
    const size_t nodes = world.device_counts.size();
    for (size_t node = 0; node < nodes; ++node) {
      savers_.push_back(std::make_unique<Savers>(Saver::Options{.root = root, .calls = &calls_}));
      options.savers.push_back(savers_.back().get());
    }
    daemons_ = std::make_unique<Daemons>(world.device_counts, options);
    for (size_t node = 0; node < nodes; ++node) {
      restores_.push_back(std::make_unique<WorldRestores>(
          WorldRestores::Options{.store = &daemons_->store(static_cast<int>(node)),
                                 .clock = &clock_,
                                 .at = [this, node](WorldRestores::Point point) { CallHook(node, point); }}));
    }
  }
  RestoredWorld(const std::string& root, const WorldCase& world, const v1::ModelSpec& spec)
      : RestoredWorld(root, world) {
    daemons_->Create(spec);
  }
  // Before what they listen to, and with nothing that would hold them up.
  ~RestoredWorld() {
    At(0, nullptr);
    restores_.clear();
  }

  Daemons& daemons() { return *daemons_; }
  WorldRestores& restores(int node) { return *restores_[node]; }
  ManualClock& clock() { return clock_; }
  Model& model(int node) { return daemons_->model(node); }
  // Is called at every point of that node's restores.
  void At(int node, Hook hook) {
    absl::MutexLock lock(&mu_);
    hooks_[node] = std::move(hook);
  }

  // As a call at node 0 does.
  absl::StatusOr<History> Restore(const std::string& checkpoint = "latest") {
    const std::shared_ptr<Model> model = *daemons_->store(0).Find("m");
    ASSIGN_OR_RETURN(const CheckpointRequest request, ParseCheckpointRequest(checkpoint));
    ASSIGN_OR_RETURN(const CheckpointChoice choice, ChooseCheckpoint(model->save_dir(), "m", request));
    ASSIGN_OR_RETURN(const auto restore, ModelRestore::Prepare(model, choice.path, {}));
    ASSIGN_OR_RETURN(const auto peers,
                     restores_[0]->LeadRestore(*model, choice, *restore,
                                               {.by_path = request.kind == CheckpointRequest::Kind::kPath}));
    return restore->Run([] { return absl::OkStatus(); }, peers.get());
  }

  void Step(int count) {
    daemons_->Attach();
    for (int i = 0; i < count; ++i) {
      for (int unit = 0; unit < 2; ++unit) {
        daemons_->Push(unit, [&](int rank) {
          std::vector<float> gradients(unit == 0 ? kRows * 8 : 10 * 16);
          for (size_t j = 0; j < gradients.size(); ++j) gradients[j] = static_cast<float>((j + rank) % 5) - 2;
          return gradients;
        });
      }
      daemons_->Commit();
    }
    daemons_->Kill(0);
  }
  // A checkpoint of the present state.
  std::string Save() {
    ModelSaver& saver = *model(0).saver();
    const auto begun = saver.Request();
    EXPECT_OK(begun);
    const auto record = saver.Await(begun->number, SteadyDeadline(kLong));
    EXPECT_OK(record);
    EXPECT_EQ(record->state, SaveState::kPublished) << record->status;
    return record->path;
  }

 private:
  void CallHook(size_t node, WorldRestores::Point point) {
    Hook hook;
    {
      absl::MutexLock lock(&mu_);
      hook = hooks_[node];
    }
    if (hook) hook(point);
  }

  DiskCalls calls_;
  ManualClock clock_;
  absl::Mutex mu_;
  std::vector<Hook> hooks_;
  std::vector<std::unique_ptr<Savers>> savers_;
  std::unique_ptr<Daemons> daemons_;
  std::vector<std::unique_ptr<WorldRestores>> restores_;
};

checkpoint::ContentHashes ContentOf(const std::string& path) {
  auto reader = checkpoint::Reader::Open(path, {.owner = geteuid()});
  EXPECT_OK(reader);
  return reader->manifest().tensors;
}

// What a world of {1, 1} has saved after three steps, with the folder that it lies in.
class WorldRestoresTestBase {
 protected:
  const std::string& root() const { return root_.path(); }
  static WorldCase Two(int shard_size = 2) { return {.name = "", .device_counts = {1, 1}, .shard_size = shard_size}; }
  static std::string SavedBy(RestoredWorld& world) {
    world.Step(3);
    return world.Save();
  }

 private:
  const test::TemporaryDirectory root_;
};

// --- What is restored ---

class WorldRestoresTest : public WorldRestoresTestBase, public testing::TestWithParam<WorldCase> {
 protected:
  std::unique_ptr<RestoredWorld> MakeWorld() const { return MakeWorld(GetParam()); }
  std::unique_ptr<RestoredWorld> MakeWorld(const WorldCase& world) const {
    return std::make_unique<RestoredWorld>(root(), world, SpecOf(world.shard_size));
  }
};

TEST_P(WorldRestoresTest, GoesOnAsIfNothingHadBeen) {
  auto world = MakeWorld();
  SavedBy(*world);
  world->Step(10);
  const std::vector<std::string> expected = world->daemons().Hashes();
  world.reset();

  world = MakeWorld();
  ASSERT_OK_AND_ASSIGN(const History history, world->Restore());
  for (int node = 0; node < world->daemons().nodes(); ++node) {
    const History other = world->model(node).history();
    EXPECT_EQ(other.id, history.id);
    EXPECT_EQ(other.lineage, history.lineage);
    EXPECT_EQ(other.parent, history.parent);
    EXPECT_EQ(world->model(node).state().numbers.commit_number, 3);
  }
  world->Step(10);
  EXPECT_EQ(world->daemons().Hashes(), expected);
}

TEST_P(WorldRestoresTest, TakesOverWhatOneDaemonHasSaved) {
  auto one = MakeWorld({.name = "", .device_counts = {3}, .shard_size = 3});
  const checkpoint::ContentHashes saved = ContentOf(SavedBy(*one));
  one.reset();
  auto world = MakeWorld();
  ASSERT_OK(world->Restore());
  // A step, for another history's checkpoint of the same one lies there.
  EXPECT_EQ(ContentOf(world->Save()), saved);
}

TEST_P(WorldRestoresTest, OneDaemonTakesOverWhatTheWorldHasSaved) {
  auto world = MakeWorld();
  const checkpoint::ContentHashes saved = ContentOf(SavedBy(*world));
  world.reset();
  auto one = MakeWorld({.name = "", .device_counts = {2}, .shard_size = 2});
  ASSERT_OK(one->Restore());
  EXPECT_EQ(ContentOf(one->Save()), saved);
}

INSTANTIATE_TEST_SUITE_P(Worlds, WorldRestoresTest,
                         testing::Values(WorldCase{"TwoShared", {1, 1}, 2}, WorldCase{"TwoReplicas", {1, 1}, 1},
                                         WorldCase{"ThreeShared", {1, 2, 1}, 4},
                                         WorldCase{"TwoReplicasOfTwo", {2, 2}, 2}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace paramshard::server
