// Restores and imports that were cut off by the end of the previous server.
#ifndef PARAMSHARD_SERVER_EDGE_INTERRUPTED_CHANGES_H_
#define PARAMSHARD_SERVER_EDGE_INTERRUPTED_CHANGES_H_

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"
#include "server/models/model_store.h"

namespace paramshard::server {

// Makes the changes again, one after the other, on a thread of its own while the daemon serves: their models exist, and
// report the change. A drain of the store gives up the change in progress and the ones after it: the next server makes
// them. A change that fails with UNAVAILABLE or RESOURCE_EXHAUSTED (a disk that does not read, no thread) is retried
// for a while. A change that fails for good loses its model (ModelStore::FinishChange).
//
//   ASSIGN_OR_RETURN(auto cut_off, store.TakeOver());
//   ...  the daemon serves ...
//   ASSIGN_OR_RETURN(auto changes, InterruptedChanges::Start(&store, std::move(cut_off), {}));
//   store.Drain(deadline, why);
//   changes.reset();
class InterruptedChanges {
 public:
  struct Options {
    // Pauses between two tries, each twice as long as the one before.
    absl::Duration first_pause = absl::Seconds(1);
    absl::Duration longest_pause = absl::Seconds(30);
    // Time from the first failure of a change after which no further try begins.
    absl::Duration timeout = absl::Minutes(3);
    const Clock* clock = &Clock::Steady();  // outlives the object
  };

  // `store` outlives it. RESOURCE_EXHAUSTED for no thread.
  static absl::StatusOr<std::unique_ptr<InterruptedChanges>> Start(ModelStore* store,
                                                                   std::vector<InterruptedChange> changes,
                                                                   const Options& options);
  // Waits for the change in progress, and begins no other. A pause ends at once.
  ~InterruptedChanges();

  // Returns when all changes are made, or given up. One caller.
  void Await();

 private:
  InterruptedChanges(ModelStore* store, std::vector<InterruptedChange> changes, const Options& options)
      : options_(options), store_(store), changes_(std::move(changes)) {}
  void Run();
  // Tries until the change is made, has failed for good, or is left to the next server.
  absl::Status MakeWithRetries(const InterruptedChange& change);
  absl::Status Make(const InterruptedChange& change) const;
  // Waits. Returns true if another try should follow.
  bool Pause(absl::Duration pause);
  bool IsStopping() const;

  const Options options_;
  ModelStore* const store_;
  std::vector<InterruptedChange> changes_;  // the thread's
  std::thread thread_;
  mutable absl::Mutex mu_;
  SteadyCondVar stopped_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_INTERRUPTED_CHANGES_H_
