// The shards of all ranks of a world, which step, are saved, and are compared.
#ifndef PARAMSHARD_TESTS_SERVER_CHECKPOINTS_SHARD_WORLD_H_
#define PARAMSHARD_TESTS_SERVER_CHECKPOINTS_SHARD_WORLD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/checkpoint/rank_file.h"
#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "server/device/compute_device.h"
#include "server/state/scaling_book.h"
#include "server/state/shard.h"
#include "tests/common/checkpoint/saved_model.h"

namespace paramshard::server {

// One daemon with all ranks. Errors are failures of the test.
class ShardWorld {
 public:
  // With initial values and planes of them.
  ShardWorld(const ModelSpec& spec, const checkpoint::World& world, const MovePolicy& moves = {});

  const ModelSpec& spec() const { return spec_; }
  const checkpoint::World& world() const { return world_; }
  int replicas() const { return world_.size / world_.shard_size; }
  std::vector<Shard*> shards() const { return shards(0, world_.size); }
  std::vector<Shard*> shards(int first_rank, int ranks) const;
  const ScalingBook& book() const { return book_; }
  int64_t commit_number() const { return commit_number_; }

  // Encodes planes like Model does for new masters; keeps the entries of `scaling`.
  void Encode(absl::Span<const ScalingBook::Record> scaling = {});
  // A commit with gradients that the commit number and the place of an element decide, whatever the world.
  void Step();
  // The commits so far are another state's.
  void SetCommitNumber(int64_t commit_number) { commit_number_ = commit_number; }

  // The whole state, put together from the first replica.
  checkpoint::SavedModel Save() const;
  // Returns the first tensor of a rank that differs from what was saved; empty if there is none.
  std::string FirstDifference(const checkpoint::SavedModel::Arrays& saved) const;
  // Planes of every rank, extent by extent.
  std::vector<std::vector<uint8_t>> Planes() const;
  // Step counts of every rank, extent by extent.
  std::vector<int64_t> Steps() const;
  // Returns true if all planes of parameters with a master equal its encoding.
  bool PlanesMatch() const;

 private:
  ModelSpec spec_;
  checkpoint::World world_;
  Layout layout_;
  std::unique_ptr<ComputeDevice> device_ = MakeCpuDevice(0);
  std::vector<std::unique_ptr<Shard>> shards_;  // by world rank
  ScalingBook book_;
  int64_t commit_number_ = 0;
};

// A parameter's stored array of an extent. One about the whole tensor is there for every extent.
std::vector<uint8_t> StoredBytes(const Shard& shard, const ShardExtent& extent, checkpoint::ArrayKind kind);

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_CHECKPOINTS_SHARD_WORLD_H_
