// The part of a node other than node 0 in the restores of its world.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_FOLLOWER_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_FOLLOWER_H_

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
#include "server/checkpoints/following_restore.h"
#include "server/models/model_store.h"
#include "server/terms/history.h"
#include "server/terms/restore_news.h"

namespace paramshard::server {

// Carries out node 0's orders: for an existing model on a thread of its own; for a new model on the thread of its
// creation, which waits for node 0's answer (AwaitOrder) and follows it (TakeOrdered). Owns the restores that it
// carries out, and reports their results to node 0. The timeout bounds all waits, and writing.
//
// Thread-safe.
class RestoreFollower {
 public:
  struct Options {
    ModelStore* store = nullptr;                 // outlives this
    absl::Duration timeout = absl::Minutes(10);  // of the wait for node 0's answer
    const Clock* clock = &Clock::Steady();       // outlives this
    HistoryIdSource draw_id = RandomHistoryId;
    std::function<void()> before_ready = [] {};    // FollowingRestore::Options
    std::function<void()> before_rows = [] {};     // likewise
    std::function<void()> before_written = [] {};  // likewise
  };

  explicit RestoreFollower(Options options);
  ~RestoreFollower();

  // Begins a drain: ends all waits, and refuses further orders. Idempotent.
  void BeginDrain();

  // Waits until node 0 has said which checkpoint a new model begins with; without an order: its initial values. Returns
  // at once if the model exists. Must not be called with a lock of the store. `is_gone` returns true if no caller waits
  // for the model any more, and does not block. DEADLINE_EXCEEDED; ABORTED if the caller has gone; UNAVAILABLE if node
  // 0 is not reached or the daemon drains; node 0's refusal.
  struct Word {
    bool is_here = false;
    std::optional<RestoreOrder> order = {};
    bool heals = false;  // RestoreAnswer
  };
  using IsGone = absl::FunctionRef<bool()>;
  absl::StatusOr<Word> AwaitOrder(const std::string& model, IsGone is_gone);
  // Returns true if node 0 has ordered a restore of a model that does not exist yet.
  bool HasOrder(absl::string_view model) const;
  // Takes such an order, by its id, for a creation that carries it out and then calls End. UNAVAILABLE if the order is
  // over, or was taken by another caller.
  absl::StatusOr<FollowingRestore*> TakeOrdered(const std::string& model, absl::uint128 id);
  // Ends `restore`, after the model's turn is given back and the model is full or dropped: this daemon takes the next
  // order for the model, and reports the result to node 0.
  void End(const FollowingRestore& restore, const absl::Status& status);
  // Tells node 0 that the creation for such an order failed before it took the order. Does nothing for an order that is
  // over or taken.
  void RefuseOrder(const std::string& model, absl::uint128 id, const absl::Status& why);

  // Carries out an order that came while a model was created here with its initial values.
  void OnCreatedFresh(const std::string& model);

  // Takes messages of node 0, and its loss.
  void OnNews(const RestoreNews& news);

 private:
  // An order of node 0, until it is carried out or over.
  struct Ordered {
    RestoreOrder order;
    SteadyTime deadline;
    std::unique_ptr<FollowingRestore> taken = {};  // until its end; null while it is not carried out
    // The next order, if it came before this one was over here: node 0 does not wait when it gives up a restore.
    std::optional<RestoreOrder> next = {};
  };
  // Creations that wait for node 0's answer.
  struct Waiting {
    absl::uint128 wish = 0;
    std::optional<SteadyTime> told = {};  // to node 0, the last time
    int callers = 0;
    std::optional<RestoreAnswer> answer = {};
  };

  Cluster& cluster() const { return *options_.store->world().cluster; }

  // An order for an existing model, to be carried out without the lock. Null otherwise.
  struct Due {
    std::shared_ptr<Model> model = {};
    FollowingRestore* restore = nullptr;
  };
  Due TakeOrder(const std::string& model, const RestoreOrder& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeGo(absl::string_view model, absl::uint128 id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeEnd(absl::string_view model, const RestoreEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeAnswer(absl::string_view model, const RestoreAnswer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeLoss(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Drops orders whose models were not created in time.
  void DropLateOrders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Refuse(const std::string& model, absl::uint128 id, const absl::Status& why);
  // Returns null if there is no order. The deadline of an order that is not taken may have passed.
  Ordered* FindOrder(absl::string_view model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns null if there is no order, or if it is taken or over.
  const Ordered* FindUntaken(absl::string_view model) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  FollowingRestore* Take(const std::string& model, Ordered& ordered) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Carries out the order on a thread of its own.
  void CarryOut(const Due& due);
  absl::Status StartWork(const Due& due);
  void Work(int64_t number, const Due& due);
  void JoinFinished();

  absl::StatusOr<Word> AwaitWord(const std::string& model, Waiting& waiting, IsGone is_gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Repeats the wish now and then: node 0 may have dropped it, or may have had no answer then.
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
  std::vector<std::thread> finished_ ABSL_GUARDED_BY(mu_);  // to be joined
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_FOLLOWER_H_
