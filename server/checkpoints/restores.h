// Restores of a daemon's models in its world: node 0 leads them, the others follow.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_RESTORES_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_RESTORES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/creation_requests.h"
#include "server/checkpoints/restore_agreement.h"
#include "server/checkpoints/restore_plan.h"
#include "server/checkpoints/restore_task.h"
#include "server/models/model_store.h"
#include "server/terms/history.h"
#include "server/terms/restore_message.h"

namespace paramshard::server {

struct RestoreSource {
  CheckpointRequest checkpoint = {};
  RestorePlan::Options plan = {};
};

// Takes the messages of other daemons (restore_message.h), and runs restores:
//
// - At node 0, and in a world of one daemon, those of its callers: Prepare, Run.
// - At node 0, rollbacks. A daemon whose keeper died with its server comes back empty, or with a state that it cannot
//   go on from, and no replica can heal it. As soon as every daemon is here and trainers wait (RollbackNeed), or a
//   creation at that daemon waits (RestoreRequest), node 0 orders a restore of the checkpoint with the largest save
//   serial at all daemons: daemons with the model restore it, the others create it from the checkpoint. The states that
//   are given up must go on from that checkpoint. If there is no such checkpoint, trainers are told why no epoch starts. A
//   model that node 0 itself has lost rolls back when its trainers create it: CreateOrRestore.
// - At other nodes, node 0's orders: for an existing model on a thread of its own; for a new model on the thread of its
//   creation, which waits for the order (AwaitOrder), takes it (TakeOrdered) and ends it (End).
//
//   ASSIGN_OR_RETURN(std::unique_ptr<RestoreTask> task, restores.Prepare(model, source));
//   ASSIGN_OR_RETURN(const RestoreResult result, restores.Run(std::move(task)));
//
// Thread-safe.
class Restores final : public RestoreListener {
 public:
  using Point = RestoreAgreement::Point;

  struct Options {
    ModelStore* store = nullptr;                 // outlives this
    absl::Duration timeout = absl::Minutes(10);  // of a restore from the order to the end, and of waits for an order
    const Clock* clock = &Clock::Steady();       // outlives this
    HistoryIdSource draw_id = RandomHistoryId;
    std::function<void(Point)> at = [](Point) {};  // tests hold restores back
  };

  // Listens to the store until its end.
  explicit Restores(Options options);
  // Ends the restores in progress, and waits for those on threads of their own.
  ~Restores() override;

  // Begins a drain: ends all waits, and restores soon, also restores that begin later. Idempotent.
  void BeginDrain();

  // --- At node 0 ---

  bool leads() const { return cluster().node() == 0; }
  // FAILED_PRECONDITION if only another daemon starts restores.
  absl::Status CheckLeads(absl::string_view model) const;

  // Chooses the checkpoint and prepares its restore, which changes nothing. `terms` says whether the model is being
  // created, and why all daemons roll back. Errors of ChooseCheckpoint and RestoreTask::Prepare.
  absl::StatusOr<std::unique_ptr<RestoreTask>> Prepare(std::shared_ptr<Model> model, const RestoreSource& source,
                                                       RestoreOrder terms = {}) const;
  // Runs a task together with the other daemons, and releases the model's import lock. `is_abandoned`:
  // RestoreAgreement::Options. Errors of RestoreTask::Run; UNAVAILABLE if another restore of a model of that name is in
  // progress: the model was deleted after its restore was prepared.
  absl::StatusOr<RestoreResult> Run(
      std::unique_ptr<RestoreTask> task, absl::FunctionRef<absl::Status()> begun = [] { return absl::OkStatus(); },
      std::function<bool()> is_abandoned = nullptr);

  // Returns the source for a model that this daemon of several has lost: at node 0 the restore that was cut off, else
  // the latest checkpoint. No value if nothing is saved. At other nodes node 0 makes the choice.
  std::optional<RestoreSource> RollbackSource(const std::string& model) const;
  // Sends the result of a rollback to trainers that wait for it, if any.
  void EndRollback(const std::string& model, const absl::Status& status);

  // --- At other nodes ---

  // Waits until node 0 has said which checkpoint a new model begins with; without an order: its initial values. Returns
  // at once if the model exists. Errors of CreationRequests::Await.
  struct Answer {
    bool is_here = false;
    std::optional<absl::uint128> order = {};  // its id
    bool heals = false;                       // RestoreAnswer
  };
  absl::StatusOr<Answer> AwaitOrder(const std::string& model, absl::FunctionRef<bool()> is_gone);
  // Returns the id of node 0's order to restore a model that does not exist yet.
  std::optional<absl::uint128> FindOrder(absl::string_view model) const;
  // Takes such an order for a creation that carries it out and then calls End. UNAVAILABLE if the order is over, or was
  // taken by another caller.
  absl::StatusOr<RestoreAgreement*> TakeOrdered(const std::string& model, absl::uint128 id);
  // Ends an ordered restore, after the model's import lock is released and the model is full or dropped: this daemon
  // takes the next order for the model, and reports the result to node 0.
  void End(const RestoreAgreement& agreement, const absl::Status& status);
  // Tells node 0 that the creation for such an order failed before it took the order. Does nothing for an order that is
  // over or taken.
  void RefuseOrder(const std::string& model, absl::uint128 id, const absl::Status& why);

  // --- At all nodes ---

  // Called when a model was created here with its initial values. Creations at other nodes begin likewise; an order
  // that came meanwhile is carried out.
  void OnCreatedFresh(const std::string& model);

  void OnRestoreMessage(const RestoreMessage& message) override;

 private:
  // The last restore of a model, if it broke off after daemons had begun to write.
  struct Broken {
    RestoreSource source;
    bool passes = false;  // the cause is temporary: a daemon was lost, or drained
  };
  // An order of node 0, until it is carried out or over.
  struct Ordered {
    RestoreOrder order;
    SteadyTime deadline;
    std::unique_ptr<RestoreAgreement> taken = {};  // until its end; null while it is not carried out
    // The next order, if it came before this one was over here: node 0 does not wait when it gives up a restore.
    std::optional<RestoreOrder> next = {};
  };
  // An order for an existing model, to be carried out without the lock. Null otherwise.
  struct Due {
    std::shared_ptr<Model> model = {};
    RestoreAgreement* agreement = nullptr;
  };

  Cluster& cluster() const { return *options_.store->world().cluster; }
  // Runs `body` on a thread of its own, which a later one or the destructor joins.
  absl::Status StartWork(absl::string_view purpose, std::function<void()> body);
  void JoinFinished();

  absl::Status Register(const std::string& model, RestoreAgreement* agreement);
  std::optional<Broken> FindBroken(const std::string& model) const;
  // Returns at once; trainers get the result. Does nothing if a rollback of the model is in progress.
  void BeginRollback(const std::string& model, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns no value if the next creation of the model here goes on with the rollback.
  std::optional<absl::Status> TryRollback(const std::string& model, const absl::Status& why);
  absl::Status RollBack(const std::shared_ptr<Model>& model, const absl::Status& why);

  Due TakeOrder(const std::string& model, const RestoreOrder& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns why an order is not taken. `found` is OK if its model is here.
  absl::Status CheckOrder(const RestoreOrder& order, const absl::Status& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Refuse(const std::string& model, absl::uint128 id, const absl::Status& why);
  // Returns null if there is no order, or if it is taken or over.
  const Ordered* FindUntaken(absl::string_view model) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  RestoreAgreement* Take(const std::string& model, Ordered& ordered) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Carries out the order on a thread of its own.
  void CarryOut(const Due& due);
  void TakeEnd(const std::string& model, const RestoreEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeLoss(const absl::Status& why);

  const Options options_;
  CreationRequests requests_;

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  // By model, at node 0.
  std::map<std::string, RestoreAgreement*, std::less<>> leading_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Broken, std::less<>> broken_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> rollbacks_ ABSL_GUARDED_BY(mu_);
  // By model, at other nodes.
  std::map<std::string, Ordered, std::less<>> ordered_ ABSL_GUARDED_BY(mu_);

  int64_t last_work_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, std::thread> works_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> finished_ ABSL_GUARDED_BY(mu_);  // to be joined: they no longer use `works_`
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_RESTORES_H_
