// Node 0's part in the restores of its world, and all of it in a world of one daemon.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_LEADER_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_LEADER_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/leading_restore.h"
#include "server/checkpoints/model_restore.h"
#include "server/models/model_store.h"
#include "server/terms/history.h"
#include "server/terms/restore_news.h"

namespace paramshard::server {

// Leads restores, and remembers which creations at other nodes wait for its answer.
//
// Thread-safe.
class RestoreLeader {
 public:
  struct Options {
    ModelStore* store = nullptr;                 // outlives this
    absl::Duration timeout = absl::Minutes(10);  // of a restore, from the order to the end
    const Clock* clock = &Clock::Steady();       // outlives this
    HistoryIdSource draw_id = RandomHistoryId;
    // Rolls all daemons back to a saved state (RollbackLeader::Begin): another daemon waits to create a model that has
    // been trained here. Returns at once, and must not call back.
    std::function<void(const std::string& model, const absl::Status& why)> roll_back = [](auto&, auto&) {};
    std::function<void()> before_go = [] {};       // LeadingRestore::Options
    std::function<void()> before_rows = [] {};     // likewise
    std::function<void()> before_written = [] {};  // likewise
    std::function<void()> before_end = [] {};      // likewise
  };

  explicit RestoreLeader(Options options) : options_(std::move(options)) {}

  // Begins a drain: restores end soon, also restores that begin now. Idempotent.
  void BeginDrain();

  // Runs a restore that is prepared here, together with the other daemons. Errors of ModelRestore::Run; UNAVAILABLE if
  // another restore of a model of that name is in progress: the model was deleted after its restore was prepared.
  struct Terms {
    bool by_path = false;  // the others find the checkpoint by its path
    bool convert_moments = false;
    bool creates = false;                                       // the model
    std::string rollback_why = {};                              // RestoreOrder
    bool was_asked_for = false;                                 // likewise
    std::function<bool()> is_abandoned = [] { return false; };  // LeadingRestore::Options
  };
  absl::StatusOr<History> Run(const Model& model, const CheckpointChoice& choice, ModelRestore& restore,
                              const Terms& terms, absl::FunctionRef<absl::Status()> begun);

  // Returns the last restore of the model, if it broke off after daemons had begun to write.
  struct Broken {
    std::string path = {};  // of the checkpoint
    bool convert_moments = false;
    bool passes = false;  // the cause is temporary: a daemon was lost, or drained
  };
  std::optional<Broken> broken(const std::string& model) const;

  // Lets creations of the model that wait elsewhere begin with initial values, as this daemon has done.
  void OnCreatedFresh(const std::string& model);

  // Refuses creations of the model that wait elsewhere.
  void Refuse(const std::string& model, const absl::Status& why);
  // Sends the result of a rollback to trainers that wait for it, if any.
  void EndRollback(const std::string& model, const absl::Status& status);

  // Takes messages of other nodes, and their loss.
  void OnNews(const RestoreNews& news);

 private:
  using Wish = std::pair<std::string, int>;  // of a model, by a node

  Cluster& cluster() const { return *options_.store->world().cluster; }

  LeadingRestore::Options OptionsFor(const Model& model, const CheckpointChoice& choice, const ModelRestore& restore,
                                     const Terms& terms) const;
  absl::Status Register(const std::string& model, LeadingRestore* restore);
  void TakeWish(const std::string& model, const RestoreWish& wish) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropWishesOf(int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the answer without the wish's id; no value if there is no answer yet.
  std::optional<RestoreAnswer> AnswerFor(const std::string& model) const;
  void AnswerAll(const std::string& model, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(const std::string& model, absl::uint128 wish, RestoreAnswer answer);

  const Options options_;

  mutable absl::Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, LeadingRestore*, std::less<>> leading_ ABSL_GUARDED_BY(mu_);  // by model
  std::map<std::string, Broken, std::less<>> broken_ ABSL_GUARDED_BY(mu_);            // likewise
  std::map<Wish, absl::uint128> wishes_ ABSL_GUARDED_BY(mu_);                         // their ids
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_LEADER_H_
