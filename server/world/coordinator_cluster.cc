#include "server/world/coordinator_cluster.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

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
  std::optional<WorldView> ViewWorld() override { return coordinator_.ViewWorld(); }
  bool may_be_fewer() const override { return may_be_fewer_; }
  absl::Status AwaitWorld(absl::Duration timeout) override { return coordinator_.AwaitWorld(timeout); }
  absl::StatusOr<HealingAnswer> OrderHealing(absl::string_view model, int donor) override {
    return Settled().OrderHealing(model, donor);
  }
  std::optional<int> healing_donor(absl::string_view model) override { return coordinator_.healing_donor(model); }
  std::optional<std::string> WhyNoEpoch(absl::string_view model) override { return coordinator_.WhyNoEpoch(model); }
  void SetListener(EpochListener* listener) override { dispatcher_.SetListener(listener); }

  void Report(const ModelReport& report) override {
    Call([this, report] { coordinator_.Report(0, report); });
  }
  void Forget(absl::string_view model) override {
    Call([this, model = std::string(model)] { coordinator_.Forget(0, model); });
  }
  void EndEpoch(absl::string_view model, int64_t epoch, const absl::Status& why) override {
    Call([this, model = std::string(model), epoch, why] { coordinator_.EndEpoch(0, model, epoch, why); });
  }
  void EndOnBadLinks(absl::string_view model, int64_t epoch, const absl::Status&,
                     const std::vector<BadLink>& links) override {
    Call([this, model = std::string(model), epoch, links] { coordinator_.EndOnBadLinks(0, model, epoch, links); });
  }
  void ReportCommands(absl::string_view model, int64_t epoch, const std::vector<CommandInWords>& commands) override {
    Call([this, model = std::string(model), epoch, commands] {
      coordinator_.ReportCommands(0, model, epoch, commands);
    });
  }
  void ReportDetached(absl::string_view model, int64_t epoch, int rank, int64_t command_count,
                      const absl::Status& why) override {
    Call([this, model = std::string(model), epoch, rank, command_count, why] {
      coordinator_.ReportDetached(0, model, epoch, rank, command_count, why);
    });
  }
  void ReportCarriedOut(absl::string_view model, int64_t epoch, int64_t command, bool more) override {
    Call([this, model = std::string(model), epoch, command, more] {
      coordinator_.ReportCarriedOut(0, model, epoch, command, more);
    });
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
  absl::Status TellSave(const SaveNews& news) override { return Settled().TellSave(0, news); }
  absl::Status TellRestore(const RestoreNews& news) override { return Settled().TellRestore(0, news); }
  std::vector<int> restored_nodes(absl::string_view model, absl::uint128 id) override {
    return coordinator_.restored_nodes(model, id);
  }
  void Stop() override { Settled().Stop(); }

 private:
  explicit CoordinatorCluster(const CoordinatorOptions& options)
      : vote_wait_(options.vote_wait),
        may_be_fewer_(options.attendance.Needed(options.nodes) < options.nodes),
        coordinator_({.nodes = options.nodes,
                      .terms = options.terms,
                      .closed = options.closed,
                      .log = options.log,
                      .attendance = options.attendance,
                      .device_counts = options.device_counts}) {
    PARAMSHARD_CHECK(coordinator_.Join(0, options.devices, this).ok());
  }

  // Models call with their locks held, which inspections take too. If the coordinator writes a log, such calls must not
  // wait for its disk.
  void Call(std::function<void()> call) { calls_ != nullptr ? calls_->Add(std::move(call)) : call(); }
  // Returns the coordinator after all queued calls are made.
  Coordinator& Settled() {
    if (calls_ != nullptr) calls_->Finish();
    return coordinator_;
  }

  void OnWelcome(int) override {}
  void OnWorld(const std::vector<int>&) override {}
  void OnEpochStart(const std::string& model, const EpochStart& start) override {
    dispatcher_.EpochStart(model, start);
  }
  void OnLastCommand(const std::string& model, int64_t epoch, int64_t command) override {
    dispatcher_.LastCommand(model, epoch, command);
  }
  void OnCommandsWanted(const std::string& model, int64_t epoch, const CommandsThrough& unless) override {
    dispatcher_.CommandsWanted(model, epoch, unless);
  }
  void OnEpochEnd(const std::string& model, int64_t epoch, const absl::Status& why) override {
    dispatcher_.EpochEnd(model, epoch, why);
  }
  void OnEpochRefused(const std::string& model, const absl::Status& why) override {
    dispatcher_.EpochRefused(model, why);
  }
  void OnSaveNews(const SaveNews& news) override { dispatcher_.SaveNews(news); }
  void OnRestoreNews(const RestoreNews& news) override { dispatcher_.RestoreNews(news); }
  void OnMoved(int64_t) override {}  // in one process there is no connection
  void OnProbe() override {}
  void OnStop() override {}

  const absl::Duration vote_wait_;
  const bool may_be_fewer_;
  EpochDispatcher dispatcher_;
  Coordinator coordinator_;           // after the dispatcher, which it calls
  std::unique_ptr<CallQueue> calls_;  // to the coordinator; null without a log
  std::thread absences_;
};

}  // namespace

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
