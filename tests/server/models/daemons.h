// A world of daemons in one process, without trainers' sockets: clusters over loopback, stores, and a fake trainer for
// every rank.
#ifndef PARAMSHARD_TESTS_SERVER_MODELS_DAEMONS_H_
#define PARAMSHARD_TESTS_SERVER_MODELS_DAEMONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/models/model.h"
#include "server/models/model_store.h"
#include "server/world/coordinator_cluster.h"
#include "tests/server/models/fake_trainer.h"
#include "tests/server/models/hooked_cluster.h"

namespace paramshard::server {

class Daemons {
 public:
  struct Options {
    std::string save_dir = {};  // and who saves, by node; they outlive the world
    std::vector<const SaverSource*> savers = {};
    std::vector<KeptStore*> kept = {};  // by node: what models outlive the world in
    MovePolicy moves = {};
    absl::Duration vote_wait = kVoteWait;                                                        // of node 0
    std::function<absl::Status(int node)> before_answer = [](int) { return absl::OkStatus(); };  // ModelTestHooks
    std::function<std::unique_ptr<ComputeDevice>(int node, int device)> make_device = [](int, int device) {
      return MakeCpuDevice(device);
    };
  };
  // By node.
  explicit Daemons(const std::vector<int>& device_counts) : Daemons(device_counts, Options()) {}
  Daemons(const std::vector<int>& device_counts, const Options& options);
  ~Daemons();

  // On every daemon. Ends the test program when one refuses.
  void Create(const v1::ModelSpec& spec);
  // Takes over what a world before this one has left in `kept`. Ends the test program when a daemon refuses.
  void TakeOver(const std::string& model);
  // Takes the models that the stores have by now in the place of those that it knows.
  void FindAgain(const std::string& model);
  ModelStore& store(int node) { return *stores_[node]; }
  HookedCluster& cluster(int node) const { return *clusters_[node]; }
  // Lets the other daemons lose this one.
  void Stop(int node);
  Model& model(int node) { return *models_[node]; }
  // The number of the present epoch.
  FakeTrainer& trainer(int rank) { return *trainers_[rank]; }
  int ranks() const { return static_cast<int>(node_of_.size()); }
  int nodes() const { return static_cast<int>(stores_.size()); }

  // Gives every rank a trainer, in an epoch that has started.
  void Attach();
  // A trainer dies; all hear of it.
  void Kill(int rank);

  // Every trainer pushes the unit, whose only parameter has the gradient `gradients(rank)`; none where it is empty.
  void Push(int unit, const std::function<std::vector<float>(int rank)>& gradients);
  void Discard();
  // The answer that all ranks get.
  wire::CommitRecord Commit(const std::function<void(v1::Commit&)>& change = {});

  // Hashes of planes and state of every extent, in the order of parameters and ranks. Planes that do not match their
  // master are GoogleTest failures.
  std::vector<std::string> Hashes() const;

 private:
  std::vector<int> node_of_;  // by rank
  std::vector<std::unique_ptr<ComputeDevice>> devices_;
  std::unique_ptr<CoordinatorNode> zero_;  // of several; its cluster is among the others
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::unique_ptr<HookedCluster>> clusters_;
  std::vector<std::unique_ptr<ModelStore>> stores_;
  std::vector<std::shared_ptr<Model>> models_;
  std::vector<std::unique_ptr<FakeTrainer>> trainers_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_MODELS_DAEMONS_H_
