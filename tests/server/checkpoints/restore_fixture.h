// Checkpoints in a folder of the test's own, and restores of them.
#ifndef PARAMSHARD_TESTS_SERVER_CHECKPOINTS_RESTORE_FIXTURE_H_
#define PARAMSHARD_TESTS_SERVER_CHECKPOINTS_RESTORE_FIXTURE_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/checkpoint/reader.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "server/checkpoints/checkpoint_loader.h"
#include "server/checkpoints/restore_plan.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/server/checkpoints/shard_world.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {

class RestoreTest : public testing::Test {
 protected:
  // Each into a folder of its own.
  std::string Write(const checkpoint::SavedModel& saved, const checkpoint::World& world) {
    ++saves_;
    return saved.Write(root_.path(), {.world = world,
                                      .ranks_per_node = 2,
                                      .step = saved.common().commit_number,
                                      .save_serial = saves_,
                                      .history = absl::uint128(saves_) << 100});
  }
  const std::string& root() const { return root_.path(); }

  static absl::StatusOr<std::unique_ptr<CheckpointLoader>> Prepare(const checkpoint::Reader& reader,
                                                                   const ShardWorld& world,
                                                                   const RestorePlan::Options& options = {},
                                                                   int threads = 2) {
    ASSIGN_OR_RETURN(RestorePlan plan, RestorePlan::Create(world.spec(), reader.spec(), options));
    return CheckpointLoader::Create({.reader = &reader,
                                     .plan = std::move(plan),
                                     .spec = &world.spec(),
                                     .shards = world.shards(),
                                     .threads = threads});
  }

  // Restores a world as one daemon does that has all of it: tensors, planes, the book, numbers.
  static absl::Status Restore(const std::string& folder, ShardWorld& world, const RestorePlan::Options& options = {}) {
    ASSIGN_OR_RETURN(const checkpoint::Reader reader, checkpoint::Reader::Open(folder, {}));
    ASSIGN_OR_RETURN(const auto loader, Prepare(reader, world, options));
    RETURN_IF_ERROR(loader->Load());
    RETURN_IF_ERROR(loader->Check(loader->content(), world.replicas()));
    world.Encode(loader->restored().scaling);
    world.SetCommitNumber(loader->restored().commits.numbers.commit_number);
    return absl::OkStatus();
  }

  // The same in several daemons of some ranks each, whose hashes are added up.
  static absl::Status RestoreByDaemons(const checkpoint::Reader& reader, const ShardWorld& world, int ranks_of_daemon) {
    ASSIGN_OR_RETURN(const RestorePlan plan, RestorePlan::Create(world.spec(), reader.spec(), {}));
    checkpoint::ContentHashes sums;
    std::unique_ptr<CheckpointLoader> loader;
    for (int first = 0; first < world.world().size; first += ranks_of_daemon) {
      const int ranks = std::min(ranks_of_daemon, world.world().size - first);
      ASSIGN_OR_RETURN(loader, CheckpointLoader::Create({.reader = &reader,
                                                         .plan = plan,
                                                         .spec = &world.spec(),
                                                         .shards = world.shards(first, ranks),
                                                         .first_rank = first,
                                                         .threads = 2}));
      RETURN_IF_ERROR(loader->Load());
      for (const auto& [key, hash] : loader->content()) sums[key] += hash;
    }
    return loader->Check(sums, world.replicas());
  }

 private:
  const test::TemporaryDirectory root_;
  int saves_ = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_CHECKPOINTS_RESTORE_FIXTURE_H_
