#include "tests/server/models/daemons.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "server/models/inspection.h"
#include "server/models/state_recovery.h"
#include "server/world/remote_cluster.h"
#include "tests/server/state/test_spec.h"
#include "tests/server/training/command.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {

constexpr absl::Duration kTimeout = absl::Seconds(30);

Daemons::Daemons(const std::vector<int>& device_counts, const Options& options) {
  const int nodes = static_cast<int>(device_counts.size());
  clusters_.resize(nodes);
  if (nodes == 1) {
    clusters_[0] = std::make_unique<HookedCluster>(device_counts[0]);
  } else {
    CoordinatorOptions coordinator{.nodes = nodes,
                                   .devices = device_counts[0],
                                   .terms = {.save_dir = options.save_dir},
                                   .vote_wait = options.vote_wait};
    if (!options.kept.empty()) coordinator.closed = *ReadClosedEpochs(*options.kept[0]);
    zero_ = std::make_unique<CoordinatorNode>(*MakeCoordinatorCluster(coordinator));
    clusters_[0] = std::make_unique<HookedCluster>(std::move(zero_->cluster));
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(zero_->service.get());
    server_ = builder.BuildAndStart();
    for (int node = 1; node < nodes; ++node) {
      auto joined = MakeRemoteCluster({.node = node,
                                       .nodes = nodes,
                                       .devices = device_counts[node],
                                       .coordinator_address = absl::StrCat("127.0.0.1:", port),
                                       .terms = {.save_dir = options.save_dir},
                                       .join_timeout = kTimeout});
      PARAMSHARD_CHECK(joined.ok());
      clusters_[node] = std::make_unique<HookedCluster>(*std::move(joined));
    }
  }
  for (int node = 0; node < nodes; ++node) {
    PARAMSHARD_CHECK(clusters_[node]->AwaitWorld(kTimeout).ok());
    World world{.cluster = clusters_[node].get(), .devices = {}, .first_rank = ranks(), .world_size = 0};
    world.world_size = std::accumulate(device_counts.begin(), device_counts.end(), 0);
    for (int device = 0; device < device_counts[node]; ++device) {
      devices_.push_back(options.make_device(node, device));
      world.devices.push_back(devices_.back().get());
      node_of_.push_back(node);
    }
    stores_.push_back(std::make_unique<ModelStore>(
        ModelStore::Options{.world = world,
                            .save_dir = options.save_dir,
                            .savers = options.savers.empty() ? nullptr : options.savers[node],
                            .moves = options.moves,
                            .kept = options.kept.empty() ? nullptr : options.kept[node],
                            .hooks = {.before_answer = [hook = options.before_answer, node] { return hook(node); }}}));
  }
}

Daemons::~Daemons() {
  trainers_.clear();
  models_.clear();
  stores_.clear();
  for (int node = 0; node < static_cast<int>(clusters_.size()); ++node) clusters_[node]->Stop();
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

void Daemons::Stop(int node) { clusters_[node]->Stop(); }

void Daemons::Create(const v1::ModelSpec& spec) {
  for (const auto& store : stores_) {
    auto created = store->CreateOrJoin(Parse(spec));
    PARAMSHARD_CHECK(created.ok());
    models_.push_back(created->model);
  }
}

void Daemons::TakeOver(const std::string& model) {
  for (const auto& store : stores_) {
    PARAMSHARD_CHECK(store->TakeOver().ok());
    models_.push_back(*store->Find(model));
  }
}

void Daemons::FindAgain(const std::string& model) {
  models_.clear();
  for (const auto& store : stores_) models_.push_back(*store->Find(model));
}

void Daemons::Attach() {
  trainers_.clear();
  for (int rank = 0; rank < ranks(); ++rank) {
    trainers_.push_back(std::make_unique<FakeTrainer>(models_[node_of_[rank]].get(), rank));
    EXPECT_OK(trainers_.back()->Attach());
  }
  for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitStarted());
}

void Daemons::Kill(int rank) {
  trainers_[rank]->Leave();
  for (const auto& trainer : trainers_) ASSERT_NE(trainer->AwaitEnded(), nullptr);
  trainers_.clear();
}

void Daemons::Push(int unit, const std::function<std::vector<float>(int rank)>& gradients) {
  // Every unit fits the last one.
  const int slot = models_[0]->spec().gradient_slots - 1;
  int64_t number = 0;
  for (const auto& trainer : trainers_) {
    const std::vector<float> values = gradients(trainer->rank());
    trainer->FillGradients(slot, unit, values);
    number = trainer->Push(unit, slot, values.empty() ? std::vector<int>{0} : std::vector<int>{});
  }
  for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitDrained(slot, number));
}

void Daemons::Discard() {
  for (const auto& trainer : trainers_) trainer->Discard();
}

wire::CommitRecord Daemons::Commit(const std::function<void(v1::Commit&)>& change) {
  const int64_t number = models_[0]->committed().commits.numbers().commit_number + 1;
  for (const auto& trainer : trainers_) {
    v1::Command command =
        CommitCommand(trainer->next_command(), number, "", static_cast<int>(models_[0]->spec().groups.size()));
    if (change) change(*command.mutable_commit());
    trainer->Send(command);
  }
  wire::CommitRecord answer{};
  for (const auto& trainer : trainers_) {
    const auto record = trainer->AwaitCommitted(number);
    EXPECT_TRUE(record.has_value()) << "rank " << trainer->rank();
    if (record.has_value()) answer = *record;
  }
  return answer;
}

std::vector<std::string> Daemons::Hashes() const {
  std::vector<std::string> hashes;
  for (const auto& model : models_) {
    const auto verified = VerifyModel(*model, [&](const ExtentVerification& extent) {
      EXPECT_TRUE(extent.planes_match) << extent.parameter;
      hashes.push_back(absl::StrCat(extent.parameter, "@", extent.rank, " ", extent.master_hash, " ",
                                    absl::StrJoin(extent.moment_hashes, " "), " ", extent.planes_hash));
      return absl::OkStatus();
    });
    EXPECT_OK(verified);
  }
  std::sort(hashes.begin(), hashes.end());
  return hashes;
}

}  // namespace paramshard::server
