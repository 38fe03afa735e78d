#include "tests/server/models/test_world.h"

#include <utility>

#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "server/models/inspection.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

std::vector<std::unique_ptr<ComputeDevice>> MakeDevices(const TestWorld::Options& options) {
  std::vector<std::unique_ptr<ComputeDevice>> devices;
  for (int rank = 0; rank < options.ranks; ++rank) devices.push_back(options.make_device(rank));
  return devices;
}

World MakeWorld(Cluster* cluster, const std::vector<std::unique_ptr<ComputeDevice>>& devices,
                const EngineSettings& engines, MetricRegistry* metrics) {
  World world{.cluster = cluster,
              .devices = {},
              .first_rank = 0,
              .world_size = static_cast<int>(devices.size()),
              .engines = engines,
              .metrics = metrics};
  for (const auto& device : devices) world.devices.push_back(device.get());
  return world;
}

}  // namespace

TestWorld::TestWorld(const Options& options)
    : devices_(MakeDevices(options)),
      cluster_(options.ranks),
      store_(std::make_unique<ModelStore>(
          ModelStore::Options{.world = MakeWorld(&cluster_, devices_, options.engines, options.metrics),
                              .step_timeout = options.step_timeout,
                              .clock = options.clock,
                              .memory_limit_bytes = options.memory_limit_bytes,
                              .savers = options.savers,
                              .moves = options.moves,
                              .kept = options.kept,
                              .hooks = options.hooks})) {}

std::shared_ptr<Model> TestWorld::Create(const v1::ModelSpec& spec) {
  auto created = store_->CreateOrJoin(Parse(spec));
  PARAMSHARD_CHECK(created.ok() && created->created);
  return created->model;
}

FakeTrainers AttachAll(Model& model) {
  FakeTrainers trainers;
  for (int rank = 0; rank < model.world().rank_count(); ++rank) {
    trainers.push_back(std::make_unique<FakeTrainer>(&model, rank));
    EXPECT_OK(trainers.back()->Attach());
  }
  for (const auto& trainer : trainers) EXPECT_TRUE(trainer->AwaitStarted());
  return trainers;
}

std::string StateHash(const Model& model) {
  const auto summary = VerifyModel(model, [](const ExtentVerification&) { return absl::OkStatus(); });
  EXPECT_OK(summary);
  if (!summary.ok()) return "";
  EXPECT_EQ(summary->mismatch_count, 0);
  return summary->state_hash;
}

}  // namespace paramshard::server
