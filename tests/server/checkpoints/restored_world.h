// A world of daemons in one process that save into a folder and restore from it.
#ifndef PARAMSHARD_TESTS_SERVER_CHECKPOINTS_RESTORED_WORLD_H_
#define PARAMSHARD_TESTS_SERVER_CHECKPOINTS_RESTORED_WORLD_H_

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/checkpoint/reader.h"
#include "kernels/base/status_macros.h"
#include "server/base/disk_calls.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/restore_task.h"
#include "server/checkpoints/restores.h"
#include "server/checkpoints/saver.h"
#include "tests/server/base/manual_clock.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/server/models/daemons.h"
#include "tests/server/models/left_memory.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {

inline constexpr absl::Duration kLong = absl::Seconds(30);
inline constexpr absl::Duration kTimeout = absl::Minutes(10);
inline constexpr int kRows = 24;
// Id of every restore, until a world draws others.
inline constexpr absl::uint128 kDrawn = absl::MakeUint128(0xabc, 0xdef);

inline v1::ModelSpec SpecOf(int shard_size, int rows = kRows) {
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
  using Hook = std::function<void(Restores::Point point)>;

  // `left`, by node: what a world before this one has left, which this one takes over.
  RestoredWorld(const std::string& root, const WorldCase& world, absl::Duration timeout,
                std::vector<FakeKeptStore*> left = {})
      : kept_(world.device_counts.size()), clocks_(world.device_counts.size()), hooks_(world.device_counts.size()) {
    Daemons::Options options{.save_dir = root};
    for (FakeKeptStore& kept : kept_) options.kept.push_back(&kept);
    for (size_t node = 0; node < left.size(); ++node) CopyKept(*left[node], kept_[node]);
    const size_t nodes = world.device_counts.size();
    for (size_t node = 0; node < nodes; ++node) {
      savers_.push_back(std::make_unique<Savers>(Saver::Options{.root = root, .calls = &calls_}));
      options.savers.push_back(savers_.back().get());
    }
    daemons_ = std::make_unique<Daemons>(world.device_counts, options);
    for (size_t node = 0; node < left.size(); ++node) EXPECT_OK(daemons_->store(static_cast<int>(node)).TakeOver());
    for (size_t node = 0; node < nodes; ++node) {
      restores_.push_back(std::make_unique<Restores>(
          Restores::Options{.store = &daemons_->store(static_cast<int>(node)),
                            .timeout = timeout,
                            .clock = &clocks_[node],
                            .draw_id = [this] { return Draw(); },
                            .at = [this, node](Restores::Point point) { CallHook(node, point); }}));
    }
  }
  RestoredWorld(const std::string& root, const WorldCase& world, const v1::ModelSpec& spec,
                absl::Duration timeout = kTimeout)
      : RestoredWorld(root, world, timeout) {
    daemons_->Create(spec);
  }
  // Before what they listen to, and with nothing that would hold them up.
  ~RestoredWorld() {
    At(0, nullptr);
    restores_.clear();
  }

  Daemons& daemons() { return *daemons_; }
  // Contents of its keeper.
  FakeKeptStore& kept(int node) { return kept_[node]; }
  Restores& restores(int node) { return *restores_[node]; }
  ManualClock& clock(int node) { return clocks_[node]; }
  Model& model(int node) { return daemons_->model(node); }
  // Is called at every point of that node's restores.
  void At(int node, Hook hook) {
    absl::MutexLock lock(&mu_);
    hooks_[node] = std::move(hook);
  }

  // From here on no two restores have the same id: what is still said of one is not taken for news of the next.
  void DrawOthers() { draws_others_ = true; }

  // Restores like a call at node 0.
  absl::StatusOr<History> Restore(const std::string& checkpoint = "latest") {
    RestoreSource source;
    ASSIGN_OR_RETURN(source.checkpoint, ParseCheckpointRequest(checkpoint));
    ASSIGN_OR_RETURN(auto task, restores_[0]->Prepare(*daemons_->store(0).Find("m"), source));
    ASSIGN_OR_RETURN(const RestoreResult result, restores_[0]->Run(std::move(task)));
    return result.history;
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
  // A checkpoint of the present state, which all daemons know of.
  std::string Save() {
    const auto begun = model(0).saver()->Request();
    EXPECT_OK(begun);
    std::string path;
    for (int node = 0; node < daemons_->nodes(); ++node) {
      const ModelSaver& saver = *model(node).saver();
      const SteadyTime end = SteadyDeadline(kLong);
      while (static_cast<int64_t>(saver.records().size()) < begun->number && SteadyNow() < end) {
        std::this_thread::yield();
      }
      const auto record = saver.Await(begun->number, end);
      EXPECT_OK(record);
      EXPECT_EQ(record->state, SaveState::kPublished) << record->status;
      path = record->path;
    }
    return path;
  }

 private:
  HistoryId Draw() { return HistoryId{draws_others_ ? kDrawn + ++drawn_ : kDrawn}; }
  void CallHook(size_t node, Restores::Point point) {
    Hook hook;
    {
      absl::MutexLock lock(&mu_);
      hook = hooks_[node];
    }
    if (hook) hook(point);
  }

  DiskCalls calls_;
  std::atomic<bool> draws_others_ = false;
  std::atomic<uint64_t> drawn_ = 0;
  std::vector<FakeKeptStore> kept_;
  std::vector<ManualClock> clocks_;
  absl::Mutex mu_;
  std::vector<Hook> hooks_;
  std::vector<std::unique_ptr<Savers>> savers_;
  std::unique_ptr<Daemons> daemons_;
  std::vector<std::unique_ptr<Restores>> restores_;
};

inline checkpoint::ContentHashes ContentOf(const std::string& path) {
  auto reader = checkpoint::Reader::Open(path, {.owner = geteuid()});
  EXPECT_OK(reader);
  return reader->manifest().tensors;
}

// A world of {1, 1} that has saved after three steps, and the folder of its checkpoint.
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

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_CHECKPOINTS_RESTORED_WORLD_H_
