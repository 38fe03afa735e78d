// A model whose state lies in shards of several daemons, and saves of it, in one process.
#ifndef PARAMSHARD_TESTS_SERVER_CHECKPOINTS_SAVED_SHARDS_H_
#define PARAMSHARD_TESTS_SERVER_CHECKPOINTS_SAVED_SHARDS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/checkpoint/rank_file.h"
#include "common/checkpoint/reader.h"
#include "common/model/layout.h"
#include "server/checkpoints/publisher.h"
#include "server/checkpoints/staging_directory.h"
#include "server/checkpoints/state_image.h"
#include "server/device/compute_device.h"
#include "server/state/shard.h"
#include "tests/common/checkpoint/saved_model.h"

namespace paramshard::server {

// Fills a shard with the rows that are its of a model's state.
void WriteState(const checkpoint::SavedModel& model, Shard& shard);

// Any state is the one to be saved.
inline absl::Status AnyState(const Shard&) { return absl::OkStatus(); }
// No checkpoint is read meanwhile.
inline bool NotRead() { return false; }

class SavedShards {
 public:
  struct Options {
    checkpoint::World world = {.size = 4, .shard_size = 2};
    int ranks_per_node = 2;
    int64_t max_header_bytes = checkpoint::RankFilePlan::kMaxHeaderBytes;
    MovePolicy moves = {};
  };
  // Shards with a random state, and filled images of them.
  SavedShards(const ModelSpec& spec, uint64_t seed, const Options& options);
  SavedShards(const ModelSpec& spec, uint64_t seed) : SavedShards(spec, seed, Options()) {}

  const ModelSpec& spec() const { return model_.spec(); }
  const checkpoint::SavedModel& model() const { return model_; }
  const checkpoint::World& world() const { return options_.world; }
  Shard& shard(int rank) { return *shards_[rank]; }
  StateImage& image(int rank) { return *images_[rank]; }

  // Copies the state out of all shards.
  void Fill();

  static SaveIdentity IdentityOf(int64_t step) {
    return {.step = step, .history = absl::MakeUint128(0x0123456789abcdef, 7), .save_id = absl::uint128(1000 + step)};
  }
  // Writes the parts of all daemons, between Begin and Publish. `folder` is the model's folder of checkpoints.
  absl::StatusOr<std::vector<PartReport>> WriteParts(DiskCalls* calls, const std::string& folder, int64_t step) const;
  // Returns the common state of the commit `step`, without step counts.
  checkpoint::CommonState CommonOf(int64_t step) const;
  // A whole save: abandoned where any part of it fails.
  Publisher::Result Save(DiskCalls* calls, Publisher& publisher, const std::string& folder, int64_t step) const;

  // Compares every byte of a checkpoint with the state. Fails the test where they differ.
  void ExpectSaved(const std::string& folder, int64_t step) const;

 private:
  const Options options_;
  const checkpoint::SavedModel model_;
  const Layout layout_;
  const std::unique_ptr<ComputeDevice> device_;
  std::vector<std::unique_ptr<Shard>> shards_;       // by world rank
  std::vector<std::unique_ptr<StateImage>> images_;  // by world rank
};

// Fails the test unless a checkpoint is whole: every byte is read.
void ExpectWhole(const std::string& folder);

// The step of the latest checkpoint; -1, and a failed test, where none can be named.
int64_t LatestStepIn(const std::string& model_folder);

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_CHECKPOINTS_SAVED_SHARDS_H_
