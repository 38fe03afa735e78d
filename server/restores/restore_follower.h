// Another node's part than node 0's in the restores of its world.
#ifndef PARAMSHARD_SERVER_RESTORES_RESTORE_FOLLOWER_H_
#define PARAMSHARD_SERVER_RESTORES_RESTORE_FOLLOWER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
#include "server/restores/following_restore.h"
#include "server/store/model_store.h"
#include "server/terms/history.h"
#include "server/terms/restore_news.h"

namespace paramshard::server {

// Carries out what node 0 orders: for models that are there on a thread of its own, for one that is being created on
// that of the creation, which waits for node 0's word (AwaitOrder) and follows it (TakeOrdered). It owns what it
// carries out, and tells node 0 at the end what came of it. All waits are bounded by the timeout, and so is writing.
//
// Thread-safe.
class RestoreFollower {
 public:
  struct Options {
    ModelStore* store = nullptr;                 // outlives this
    absl::Duration timeout = absl::Minutes(10);  // of the wait for node 0's word
    const Clock* clock = &Clock::Steady();       // outlives this
    HistoryIdSource draw_id = RandomHistoryId;
    std::function<void()> before_ready = [] {};    // FollowingRestore::Options
    std::function<void()> before_rows = [] {};     // likewise
    std::function<void()> before_written = [] {};  // likewise
  };

  explicit RestoreFollower(Options options);
  ~RestoreFollower();

  // The daemon drains: ends all waits, and refuses what comes. Idempotent.
  void BeginDrain();

  // Waits until node 0 has said what a model that is being created begins with; none: its initial values. Returns at
  // once when the model is there. Not to be called with a lock of the store. `is_gone` says whether nobody waits for
  // the model any more, and does not wait itself. DEADLINE_EXCEEDED; ABORTED the caller is gone; UNAVAILABLE node 0 is
  // not reached or the daemon drains; node 0's refusal.
  struct Word {
    bool is_here = false;
    std::optional<RestoreOrder> order = {};
    bool heals = false;  // RestoreAnswer
  };
  using IsGone = absl::FunctionRef<bool()>;
  absl::StatusOr<Word> AwaitOrder(const std::string& model, IsGone is_gone);
  // Whether node 0 has ordered a restore of a model that is not there yet.
  bool HasOrder(absl::string_view model) const;
  // Takes such an order, by its id, for a creation that carries it out and calls End then. UNAVAILABLE the order is
  // over, or somebody else has it.
  absl::StatusOr<FollowingRestore*> TakeOrdered(const std::string& model, absl::uint128 id);
  // What came of it, when the model's turn is given back and there is a model that is full, or none: this daemon takes
  // the next order for the model, and node 0 hears of the end. `restore` ends.
  void End(const FollowingRestore& restore, const absl::Status& status);
  // The creation that was to take such an order has failed before it could: node 0 is told why. Nothing for one that is
  // over, or that somebody has taken.
  void RefuseOrder(const std::string& model, absl::uint128 id, const absl::Status& why);

  // A model was created here with its initial values: an order that has come meanwhile is carried out.
  void OnCreatedFresh(const std::string& model);

  // What node 0 says, and that it is lost.
  void OnNews(const RestoreNews& news);

 private:
  // An order of node 0, until it is carried out or over.
  struct Ordered {
    RestoreOrder order;
    SteadyTime deadline;
    std::unique_ptr<FollowingRestore> taken = {};  // until its end; null while nobody carries it out
    // That came before this one was over here: node 0 waits for nobody when it gives one up.
    std::optional<RestoreOrder> next = {};
  };
  // Creations that wait for node 0's word.
  struct Waiting {
    absl::uint128 wish = 0;
    std::optional<SteadyTime> told = {};  // to node 0, the last time
    int callers = 0;
    std::optional<RestoreAnswer> answer = {};
  };

  Cluster& cluster() const { return *options_.store->world().cluster; }

  // Of a model that is here: to be carried out, without the lock. Null otherwise.
  struct Due {
    std::shared_ptr<Model> model = {};
    FollowingRestore* restore = nullptr;
  };
  Due TakeOrder(const std::string& model, const RestoreOrder& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeGo(absl::string_view model, absl::uint128 id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeEnd(absl::string_view model, const RestoreEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeAnswer(absl::string_view model, const RestoreAnswer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeLoss(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whose models have not come in time.
  void DropLateOrders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Refuse(const std::string& model, absl::uint128 id, const absl::Status& why);
  // Null when there is none. One that nobody has taken may be over: its deadline may have passed.
  Ordered* FindOrder(absl::string_view model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null when there is none, somebody has taken it, or it is over.
  const Ordered* FindUntaken(absl::string_view model) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  FollowingRestore* Take(const std::string& model, Ordered& ordered) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // On a thread of its own.
  void CarryOut(const Due& due);
  absl::Status StartWork(const Due& due);
  void Work(int64_t number, const Due& due);
  void JoinFinished();

  absl::StatusOr<Word> AwaitWord(const std::string& model, Waiting& waiting, IsGone is_gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Now and then again: node 0 may have dropped it, or have had no answer then.
  absl::Status TellWish(const std::string& model, Waiting& waiting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WithdrawWish(const std::string& model, const Waiting& waiting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Ordered, std::less<>> ordered_ ABSL_GUARDED_BY(mu_);  // by model
  std::map<std::string, Waiting, std::less<>> waiting_ ABSL_GUARDED_BY(mu_);  // likewise
  int64_t last_work_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, std::thread> works_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> finished_ ABSL_GUARDED_BY(mu_);  // they do nothing more
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_RESTORES_RESTORE_FOLLOWER_H_
