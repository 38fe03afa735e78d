#include "server/world/coordinator_cluster.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"
#include "server/world/call_queue.h"
#include "server/world/cluster_service.h"
#include "server/world/coordinator.h"
#include "server/world/epoch_dispatcher.h"

namespace paramshard::server {
namespace {

class CoordinatorRendezvous final : public Rendezvous {
 public:
  CoordinatorRendezvous(Coordinator* coordinator, absl::string_view model, int64_t epoch)
      : coordinator_(coordinator), model_(model), epoch_(epoch) {}

  absl::Status Put(absl::string_view key, absl::string_view value) override {
    return coordinator_->Put(0, model_, epoch_, key, value);
  }
  absl::StatusOr<std::string> Get(int node, absl::string_view key, absl::Duration timeout) override {
    return coordinator_->Get(node, model_, epoch_, key, timeout);
  }
  absl::Status PutParts(absl::string_view key, const std::vector<std::string>& parts) override {
    return coordinator_->PutParts(0, model_, epoch_, key, parts);
  }
  absl::StatusOr<std::vector<std::string>> GetParts(absl::string_view key, absl::Duration timeout) override {
    return coordinator_->GetParts(0, model_, epoch_, key, timeout);
  }

 private:
  Coordinator* const coordinator_;
  const std::string model_;
  const int64_t epoch_;
};

class CoordinatorCluster final : public Cluster, private NodeSink {
 public:
  static absl::StatusOr<std::unique_ptr<CoordinatorCluster>> Create(const CoordinatorOptions& options) {
    std::unique_ptr<CoordinatorCluster> cluster(new CoordinatorCluster(options));
    RETURN_IF_ERROR(cluster->dispatcher_.Start());
    if (options.log != nullptr) {
      ASSIGN_OR_RETURN(cluster->calls_, CallQueue::Start());
    }
    if (cluster->may_be_fewer()) {
      CoordinatorCluster* const self = cluster.get();
      ASSIGN_OR_RETURN(cluster->absences_,
                       StartThread("nodes that are lost", [self] { self->coordinator_.ServeAbsences(); }));
    }
    return cluster;
  }
  ~CoordinatorCluster() override {
    Stop();
    coordinator_.Leave(0);
    if (absences_.joinable()) absences_.join();
  }

  Coordinator& coordinator() { return coordinator_; }

  int node() const override { return 0; }
  int nodes() const override { return coordinator_.nodes(); }
  std::vector<int> device_counts() const override { return coordinator_.device_counts(); }
  std::vector<std::string> addresses() const override { return coordinator_.addresses(); }
  std::optional<WorldView> ViewWorld() override { return coordinator_.ViewWorld(); }
  bool may_be_fewer() const override { return may_be_fewer_; }
  absl::Status AwaitWorld(absl::Duration timeout) override { return coordinator_.AwaitWorld(timeout); }
  absl::StatusOr<HealingAnswer> OrderHealing(absl::string_view model, int donor) override {
    return Settled().OrderHealing(model, donor);
  }
  std::optional<int> healing_donor(absl::string_view model) override { return coordinator_.healing_donor(model); }
  std::map<std::string, std::string> WaitingModels() override { return coordinator_.WaitingModels(); }
  void SetListener(EpochListener* listener) override { dispatcher_.SetListener(listener); }

  // Models call with their locks held, which inspections take too. If the coordinator writes a log, messages without an
  // answer must not wait for its disk.
  absl::Status Send(const FromNode& message) override {
    const bool has_answer =
        std::holds_alternative<SaveMessage>(message) || std::holds_alternative<RestoreMessage>(message);
    if (calls_ == nullptr || has_answer) return Settled().Step(0, message);
    calls_->Add([this, message] { coordinator_.Step(0, message).IgnoreError(); });
    return absl::OkStatus();
  }
  // A repeated vote asks the late nodes for their commands.
  absl::StatusOr<CommitDecision> Vote(const CommitVote& vote) override {
    while (true) {
      const absl::StatusOr<CommitDecision> decision = Settled().Vote(0, vote, vote_wait_);
      if (!absl::IsDeadlineExceeded(decision.status())) return decision;
    }
  }
  absl::StatusOr<CommitDecision> QueryCommit(const CommitQuery& query) override {
    return Settled().QueryCommit(0, query);
  }
  std::unique_ptr<Rendezvous> MakeRendezvous(absl::string_view model, int64_t epoch) override {
    return std::make_unique<CoordinatorRendezvous>(&coordinator_, model, epoch);
  }
  std::vector<int> restored_nodes(absl::string_view model, absl::uint128 id) override {
    return coordinator_.restored_nodes(model, id);
  }
  void Stop() override { Settled().Stop(); }

 private:
  explicit CoordinatorCluster(const CoordinatorOptions& options)
      : vote_wait_(options.vote_wait),
        may_be_fewer_(options.quorum.Needed(options.nodes) < options.nodes),
        coordinator_({.nodes = options.nodes,
                      .terms = options.terms,
                      .closed = options.closed,
                      .log = options.log,
                      .quorum = options.quorum,
                      .device_counts = options.device_counts}) {
    PARAMSHARD_CHECK(coordinator_.Join(0, options.devices, this).ok());
  }

  // Returns the coordinator after all queued calls are made.
  Coordinator& Settled() {
    if (calls_ != nullptr) calls_->Finish();
    return coordinator_;
  }

  void Tell(const ToNode& message) override { dispatcher_.Add(message); }
  void OnStop() override {}

  const absl::Duration vote_wait_;
  const bool may_be_fewer_;
  EpochDispatcher dispatcher_;
  Coordinator coordinator_;           // after the dispatcher, which it calls
  std::unique_ptr<CallQueue> calls_;  // to the coordinator; null without a log
  std::thread absences_;
};

}  // namespace

absl::StatusOr<HealingAnswer> Cluster::OrderHealing(absl::string_view model, int) {
  return absl::FailedPreconditionError(
      absl::StrCat("heal ", model, ": want a call to node 0, which begins epochs, got one to node ", node()));
}

absl::StatusOr<std::unique_ptr<Cluster>> MakeLocalCluster(int devices) {
  return CoordinatorCluster::Create({.nodes = 1, .devices = devices});
}

CoordinatorNode::CoordinatorNode(std::unique_ptr<Cluster> cluster, std::unique_ptr<grpc::Service> service)
    : cluster(std::move(cluster)), service(std::move(service)) {}
CoordinatorNode::CoordinatorNode(CoordinatorNode&&) noexcept = default;
CoordinatorNode::~CoordinatorNode() = default;

absl::StatusOr<CoordinatorNode> MakeCoordinatorCluster(const CoordinatorOptions& options) {
  ASSIGN_OR_RETURN(auto cluster, CoordinatorCluster::Create(options));
  auto service = std::make_unique<ClusterServiceImpl>(&cluster->coordinator(), options.check_speaker);
  return CoordinatorNode(std::move(cluster), std::move(service));
}

}  // namespace paramshard::server
