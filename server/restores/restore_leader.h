// Node 0's part in the restores of its world, and all of it in a world of one daemon.
#ifndef PARAMSHARD_SERVER_RESTORES_RESTORE_LEADER_H_
#define PARAMSHARD_SERVER_RESTORES_RESTORE_LEADER_H_

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
#include "server/cluster/restore_news.h"
#include "server/restores/checkpoint_choice.h"
#include "server/restores/leading_restore.h"
#include "server/restores/model_restore.h"
#include "server/store/history.h"
#include "server/store/model_store.h"

namespace paramshard::server {

// Leads restores, and remembers which creations at other nodes wait for its word.
//
// Thread-safe.
class RestoreLeader {
 public:
  struct Options {
    ModelStore* store = nullptr;                 // outlives this
    absl::Duration timeout = absl::Minutes(10);  // of a restore, from the order to the end
    const Clock* clock = &Clock::Steady();       // outlives this
    HistoryIdSource draw_id = RandomHistoryId;
    std::function<void()> before_go = [] {};       // LeadingRestore::Options
    std::function<void()> before_rows = [] {};     // likewise
    std::function<void()> before_written = [] {};  // likewise
    std::function<void()> before_end = [] {};      // likewise
  };

  explicit RestoreLeader(Options options) : options_(std::move(options)) {}

  // The daemon drains: restores end soon, also those that begin now. Idempotent.
  void BeginDrain();

  // Runs a restore that is prepared here, together with the other daemons. Errors of ModelRestore::Run; UNAVAILABLE
  // another one goes on of a model of that name, of which one was deleted since its restore was prepared.
  struct Terms {
    bool by_path = false;  // the others find the checkpoint so
    bool convert_moments = false;
    bool creates = false;                                       // the model
    std::function<bool()> is_abandoned = [] { return false; };  // LeadingRestore::Options
  };
  absl::StatusOr<History> Run(const Model& model, const CheckpointChoice& choice, ModelRestore& restore,
                              const Terms& terms, absl::FunctionRef<absl::Status()> begun);

  // A model was created here with its initial values: creations of it that wait elsewhere begin so too.
  void OnCreatedFresh(const std::string& model);

  // What other nodes say, and that one is lost.
  void OnNews(const RestoreNews& news);

 private:
  using Wish = std::pair<std::string, int>;  // of a model, by a node

  Cluster& cluster() const { return *options_.store->world().cluster; }

  LeadingRestore::Options OptionsFor(const Model& model, const CheckpointChoice& choice, const ModelRestore& restore,
                                     const Terms& terms) const;
  absl::Status Register(const std::string& model, LeadingRestore* restore);
  void TakeWish(const std::string& model, const RestoreWish& wish) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropWishesOf(int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null where nothing can be said yet.
  std::optional<absl::Status> AnswerFor(const std::string& model) const;
  void Answer(const std::string& model, absl::uint128 wish, const absl::Status& status);

  const Options options_;

  absl::Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, LeadingRestore*, std::less<>> leading_ ABSL_GUARDED_BY(mu_);  // by model
  std::map<Wish, absl::uint128> wishes_ ABSL_GUARDED_BY(mu_);                         // their ids
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_RESTORES_RESTORE_LEADER_H_
