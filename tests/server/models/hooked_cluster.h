// A cluster whose votes a test holds back or spoils; everything else is another cluster's.
#ifndef PARAMSHARD_TESTS_SERVER_MODELS_HOOKED_CLUSTER_H_
#define PARAMSHARD_TESTS_SERVER_MODELS_HOOKED_CLUSTER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"
#include "server/terms/cluster.h"
#include "server/world/coordinator_cluster.h"

namespace paramshard::server {

class HookedCluster final : public Cluster {
 public:
  explicit HookedCluster(int devices) : HookedCluster(*MakeLocalCluster(devices)) {}
  explicit HookedCluster(std::unique_ptr<Cluster> cluster) : cluster_(std::move(cluster)) {}

  // Called before every vote that is yet to come, and after every decision; an error is the vote's answer.
  void BeforeVote(std::function<absl::Status()> hook) {
    absl::MutexLock lock(&mu_);
    before_vote_ = std::move(hook);
  }
  void AfterVote(std::function<absl::Status()> hook) {
    absl::MutexLock lock(&mu_);
    after_vote_ = std::move(hook);
  }

  // Sets the answer of every later call of the rendezvous.
  void FailRendezvous(std::function<absl::Status()> hook) {
    absl::MutexLock lock(&mu_);
    rendezvous_ = std::move(hook);
  }

  // Sets a hook that hears all later messages about saves.
  void OnTellSave(std::function<void(const SaveMessage& message)> hook) {
    absl::MutexLock lock(&mu_);
    hears_ = std::move(hook);
  }

  // Sets a hook that says which later messages about restores get lost.
  void LoseRestoreMessages(std::function<bool(const RestoreMessage& message)> hook) {
    absl::MutexLock lock(&mu_);
    loses_ = std::move(hook);
  }

  // Called before every report that is yet to come.
  void OnReport(std::function<void(const ModelReport& report)> hook) {
    absl::MutexLock lock(&mu_);
    on_report_ = std::move(hook);
  }

  // Called when a model is forgotten from now on.
  void OnForget(std::function<void()> hook) {
    absl::MutexLock lock(&mu_);
    on_forget_ = std::move(hook);
  }

  // Waits until this node was asked for its commands so many times, and has answered where it has something to say.
  bool AwaitQuestions(int count) { return ear_.AwaitQuestions(count); }

  // Lets the node hear nothing more of epochs and of what becomes of models, like a node 0 that hangs.
  void Hang() { hangs_ = true; }

  absl::StatusOr<CommitDecision> Vote(const CommitVote& vote) override {
    RETURN_IF_ERROR(Hook(before_vote_)());
    absl::StatusOr<CommitDecision> decision = cluster_->Vote(vote);
    RETURN_IF_ERROR(Hook(after_vote_)());
    return decision;
  }

  absl::StatusOr<CommitDecision> QueryCommit(const CommitQuery& query) override { return cluster_->QueryCommit(query); }
  int node() const override { return cluster_->node(); }
  int nodes() const override { return cluster_->nodes(); }
  std::vector<int> device_counts() const override { return cluster_->device_counts(); }
  absl::Status AwaitWorld(absl::Duration timeout) override { return cluster_->AwaitWorld(timeout); }
  absl::StatusOr<HealingAnswer> OrderHealing(absl::string_view model, int donor) override {
    return cluster_->OrderHealing(model, donor);
  }
  std::optional<int> healing_donor(absl::string_view model) override { return cluster_->healing_donor(model); }
  std::map<std::string, std::string> WaitingModels() override { return cluster_->WaitingModels(); }
  void SetListener(EpochListener* listener) override {
    cluster_->SetListener(nullptr);
    ear_.SetListener(listener);
    if (listener != nullptr) cluster_->SetListener(&ear_);
  }
  absl::Status Send(const FromNode& message) override {
    const bool is_lost = std::visit([this](const auto& one) { return Loses(one); }, message);
    return is_lost ? absl::OkStatus() : cluster_->Send(message);
  }
  std::unique_ptr<Rendezvous> MakeRendezvous(absl::string_view model, int64_t epoch) override {
    const std::function<absl::Status()> fails = Hook(rendezvous_);
    if (fails) return std::make_unique<FailingRendezvous>(fails);
    return cluster_->MakeRendezvous(model, epoch);
  }
  std::vector<int> restored_nodes(absl::string_view model, absl::uint128 id) override {
    return cluster_->restored_nodes(model, id);
  }
  void Stop() override { cluster_->Stop(); }

 private:
  // Makes the hooks of a message. Returns true if it gets lost.
  bool Loses(const ModelReport& report) {
    if (const std::function<void(const ModelReport&)> hook = Hook(on_report_); hook) hook(report);
    return false;
  }
  bool Loses(const ModelDeleted&) {
    Hook(on_forget_)();
    return hangs_;
  }
  bool Loses(const EndEpoch&) { return hangs_; }
  bool Loses(const RankDetached&) { return hangs_; }
  bool Loses(const SaveMessage& message) {
    if (const std::function<void(const SaveMessage&)> hears = Hook(hears_); hears) hears(message);
    return false;
  }
  bool Loses(const RestoreMessage& message) {
    const std::function<bool(const RestoreMessage&)> loses = Hook(loses_);
    return loses && loses(message);
  }
  bool Loses(const CommandReports&) { return false; }
  bool Loses(const CommandsCarriedOut&) { return false; }
  bool Loses(const WorldQuestion&) { return false; }

  // Tells another listener everything, and counts.
  class Ear final : public EpochListener {
   public:
    void SetListener(EpochListener* listener) { listener_ = listener; }
    bool AwaitQuestions(int count) {
      const SteadyTime deadline = SteadyDeadline(absl::Seconds(30));
      absl::MutexLock lock(&mu_);
      while (questions_ < count) {
        if (asked_.WaitUntil(&mu_, deadline)) return false;
      }
      return true;
    }

    void Hear(const ToNode& message) override {
      listener_->Hear(message);
      if (!std::holds_alternative<CommandsWanted>(message)) return;
      absl::MutexLock lock(&mu_);
      ++questions_;
      asked_.SignalAll();
    }

   private:
    EpochListener* listener_ = nullptr;  // changed while no call runs
    absl::Mutex mu_;
    SteadyCondVar asked_;
    int questions_ ABSL_GUARDED_BY(mu_) = 0;
  };

  class FailingRendezvous final : public Rendezvous {
   public:
    explicit FailingRendezvous(std::function<absl::Status()> hook) : hook_(std::move(hook)) {}
    absl::Status Put(absl::string_view, absl::string_view) override { return hook_(); }
    absl::StatusOr<std::string> Get(int, absl::string_view, absl::Duration) override { return hook_(); }
    absl::Status PutParts(absl::string_view, const std::vector<std::string>&) override { return hook_(); }
    absl::StatusOr<std::vector<std::string>> GetParts(absl::string_view, absl::Duration) override { return hook_(); }

   private:
    const std::function<absl::Status()> hook_;
  };

  // A hook may wait: it is called without the lock.
  template <typename Function>
  Function Hook(const Function& hook) {
    absl::MutexLock lock(&mu_);
    return hook;
  }

  Ear ear_;  // before the cluster, which calls it
  const std::unique_ptr<Cluster> cluster_;
  std::atomic<bool> hangs_ = false;
  absl::Mutex mu_;
  std::function<absl::Status()> before_vote_ = [] { return absl::OkStatus(); };  // these seven guarded by mu_
  std::function<absl::Status()> after_vote_ = before_vote_;
  std::function<absl::Status()> rendezvous_;
  std::function<void(const SaveMessage& message)> hears_;
  std::function<bool(const RestoreMessage& message)> loses_;
  std::function<void(const ModelReport& report)> on_report_;
  std::function<void()> on_forget_ = [] {};
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_MODELS_HOOKED_CLUSTER_H_
