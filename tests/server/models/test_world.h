// A daemon's models without sockets: a store, its cluster, and trainers in the test's own process.
#ifndef PARAMSHARD_TESTS_SERVER_MODELS_TEST_WORLD_H_
#define PARAMSHARD_TESTS_SERVER_MODELS_TEST_WORLD_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/models/model.h"
#include "server/models/model_store.h"
#include "tests/server/models/fake_trainer.h"
#include "tests/server/models/hooked_cluster.h"

namespace paramshard::server {

class TestWorld {
 public:
  struct Options {
    int ranks = 2;
    absl::Duration step_timeout = absl::Minutes(1);
    const Clock* clock = &Clock::Steady();
    int64_t memory_limit_bytes = 0;
    MovePolicy moves = {};
    std::function<std::unique_ptr<ComputeDevice>(int rank)> make_device = MakeCpuDevice;
    EngineSettings engines = {};
    const SaverSource* savers = nullptr;
    KeptStore* kept = nullptr;
    MetricRegistry* metrics = &MetricRegistry::Unread();
    ModelTestHooks hooks = {};
  };
  explicit TestWorld(const Options& options);

  HookedCluster& cluster() { return cluster_; }
  ModelStore& store() { return *store_; }
  // Destroys the store with all models that have no other owner.
  void CloseStore() { store_.reset(); }
  // Ends the test program when the store refuses.
  std::shared_ptr<Model> Create(const v1::ModelSpec& spec);

 private:
  std::vector<std::unique_ptr<ComputeDevice>> devices_;
  HookedCluster cluster_;
  std::unique_ptr<ModelStore> store_;
};

using FakeTrainers = std::vector<std::unique_ptr<FakeTrainer>>;

// One trainer for each rank, in an epoch that has started.
FakeTrainers AttachAll(Model& model);

// Returns hashes of master and moments. Planes that do not match their master are GoogleTest failures.
std::string StateHash(const Model& model);

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_MODELS_TEST_WORLD_H_
