// The restores of a daemon's models in a world of several daemons: node 0 leads them, the others follow.
#ifndef PARAMSHARD_SERVER_RESTORES_WORLD_RESTORES_H_
#define PARAMSHARD_SERVER_RESTORES_WORLD_RESTORES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
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
#include "server/cluster/restore_news.h"
#include "server/restores/checkpoint_choice.h"
#include "server/restores/following_restore.h"
#include "server/restores/leading_restore.h"
#include "server/restores/model_restore.h"
#include "server/restores/restore_peers.h"
#include "server/store/history.h"
#include "server/store/model_store.h"

namespace paramshard::server {

// Says who leads, passes on what daemons say to those whom it concerns, and carries out at other nodes than 0 what node
// 0 orders for models that are there. Models that are being created wait for each other: a creation at another node for
// node 0's word (AwaitOrder), and node 0's creation for those of the others. All waits are bounded by the timeout.
//
// Thread-safe. In a world of one daemon it has nothing to do.
class WorldRestores final : public RestoreListener {
 public:
  // Where tests hold a restore back.
  enum class Point : uint8_t {
    kReady,    // another node is about to say that it is
    kGo,       // node 0 is about to let all go
    kWritten,  // another node is about to say that it has
    kEnd,      // node 0 is about to say that the state is whole
  };

  struct Options {
    ModelStore* store = nullptr;                 // outlives this
    absl::Duration timeout = absl::Minutes(10);  // of a restore, from the order to the end
    const Clock* clock = &Clock::Steady();       // outlives this
    HistoryIdSource draw_id = RandomHistoryId;
    std::function<void(Point)> at = [](Point) {};
  };

  // Listens to the store until its end.
  explicit WorldRestores(Options options);
  ~WorldRestores() override;

  // The daemon drains: ends all waits, and refuses what comes. Idempotent.
  void BeginDrain();

  // FAILED_PRECONDITION: another daemon is to be asked.
  absl::Status CheckLeads(absl::string_view model) const;
  bool leads() const { return node() == 0; }

  // At node 0: agrees with the other daemons on a restore that is prepared here. Null in a world of one daemon.
  // UNAVAILABLE once draining.
  struct Lead {
    bool by_path = false;  // the others find the checkpoint so
    bool convert_moments = false;
    bool creates = false;  // the model
  };
  absl::StatusOr<std::unique_ptr<RestorePeers>> LeadRestore(const Model& model, const CheckpointChoice& choice,
                                                            const ModelRestore& restore, const Lead& lead);
  // At another node: waits until node 0 has said what a model that is being created begins with; none: its initial
  // values. Returns at once when the model is there. Not to be called with a lock of the store. `is_gone` says whether
  // nobody waits for the model any more, and does not wait itself. DEADLINE_EXCEEDED; ABORTED the caller is gone;
  // UNAVAILABLE node 0 is not reached or the daemon drains; node 0's refusal.
  struct Word {
    bool is_here = false;
    std::optional<RestoreOrder> order = {};
  };
  using IsGone = absl::FunctionRef<bool()>;
  absl::StatusOr<Word> AwaitOrder(const std::string& model, IsGone is_gone);
  // Whether node 0 has ordered a restore of a model that is not there yet.
  bool HasOrder(absl::string_view model) const;
  // Takes such an order, by its id. UNAVAILABLE: it is over, or somebody else has it.
  absl::StatusOr<std::unique_ptr<FollowingRestore>> Follow(const std::string& model, absl::uint128 id);
  // The creation that was to take such an order has failed before it could: node 0 is told why. Nothing for one that is
  // over, or that somebody has taken.
  void RefuseOrder(const std::string& model, absl::uint128 id, const absl::Status& why);

  // A model was created here with its initial values. Of node 0: creations of it that wait elsewhere begin so too.
  // Elsewhere an order that has come meanwhile is carried out.
  void OnCreatedFresh(const std::string& model);

  void OnRestoreNews(const RestoreNews& news) override;

 private:
  // An order of node 0, until it is carried out or over.
  struct Ordered {
    RestoreOrder order;
    SteadyTime deadline;
    FollowingRestore* taken = nullptr;  // by whoever carries it out; null while its model is not there
    // That came before this one was over here: node 0 waits for nobody when it gives one up.
    std::optional<RestoreOrder> next = {};
  };
  // Creations that wait for node 0's word.
  struct Waiting {
    absl::uint128 wish = 0;
    bool is_told = false;  // to node 0
    int callers = 0;
    std::optional<absl::Status> answer = {};
  };
  struct Worker {
    std::shared_ptr<Model> model;
    std::unique_ptr<FollowingRestore> restore;
    std::thread thread;
  };
  using Wish = std::pair<std::string, int>;  // of a model, by a node

  int node() const { return cluster().node(); }
  Cluster& cluster() const { return *options_.store->world().cluster; }

  // Node 0's.
  void DropWishesOf(int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeWish(const std::string& model, const RestoreWish& wish) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null where nothing can be said yet.
  std::optional<absl::Status> AnswerFor(const std::string& model) const;
  void Answer(const std::string& model, absl::uint128 wish, const absl::Status& status);
  void AnswerWishes(const std::string& model);

  // The others'.
  void TakeOrder(const std::string& model, const RestoreOrder& order);
  void TakeGo(absl::string_view model, absl::uint128 id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeEnd(absl::string_view model, const RestoreEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeAnswer(absl::string_view model, const RestoreAnswer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeLoss(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CarryOutUntaken(const std::string& model);
  // Whose models have not come in time.
  void DropLateOrders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Refuse(const std::string& model, absl::uint128 id, const absl::Status& why);
  // Null when there is none, or it is over.
  Ordered* FindOrder(absl::string_view model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  const Ordered* FindUntaken(absl::string_view model) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  std::unique_ptr<FollowingRestore> Take(const std::string& model, Ordered& ordered) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // On a thread of its own.
  void CarryOut(std::shared_ptr<Model> model, std::unique_ptr<FollowingRestore> restore);
  // An error leaves the worker as it was.
  absl::Status StartWork(Worker& worker);
  void Work(int64_t number);
  static void RunOrdered(const std::shared_ptr<Model>& model, FollowingRestore& restore);
  absl::StatusOr<Word> AwaitWord(const std::string& model, Waiting& waiting, IsGone is_gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TellWish(const std::string& model, Waiting& waiting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WithdrawWish(const std::string& model, const Waiting& waiting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(const std::string& model, absl::uint128 id);
  void JoinFinished();

  const Options options_;

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, LeadingRestore*, std::less<>> leading_ ABSL_GUARDED_BY(mu_);  // by model
  std::map<Wish, absl::uint128> wishes_ ABSL_GUARDED_BY(mu_);                         // their ids
  std::map<std::string, Ordered, std::less<>> ordered_ ABSL_GUARDED_BY(mu_);          // by model
  std::map<std::string, Waiting, std::less<>> waiting_ ABSL_GUARDED_BY(mu_);          // likewise
  int64_t last_work_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, Worker> works_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> finished_ ABSL_GUARDED_BY(mu_);  // they do nothing more
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_RESTORES_WORLD_RESTORES_H_
