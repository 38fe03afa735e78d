// Thread pool for calls, started with the daemon.
#ifndef PARAMSHARD_SERVER_EDGE_WORKERS_H_
#define PARAMSHARD_SERVER_EDGE_WORKERS_H_

#include <unistd.h>

#include <climits>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/base/user_quota.h"
#include "server/edge/callers.h"

namespace paramshard::server {

// A fixed number of threads and a bounded queue, which users share (UserQuota): a user that fills its share of either
// does not hold up the daemon's own user. Clients cannot cause the start of further threads. Thread-safe.
class Workers {
 public:
  struct Options {
    int threads = 1;
    // Largest number of works that wait or run at a time.
    int max_works = 1;
    // Largest number of works of one companion connection.
    int max_works_of_connection = INT_MAX;
  };
  // RESOURCE_EXHAUSTED at the limit of threads, naming `purpose`.
  static absl::StatusOr<std::unique_ptr<Workers>> Start(absl::string_view purpose, Options options);
  // Carries out the queued works first.
  ~Workers();

  // Place of a work that waits or runs, held until this object ends. Move-only.
  class Place {
   public:
    Place(Workers* workers, Callers::Caller caller) : workers_(workers), caller_(std::move(caller)) {}
    Place(Place&& other) noexcept
        : workers_(std::exchange(other.workers_, nullptr)), caller_(std::move(other.caller_)) {}
    ~Place() {
      if (workers_ != nullptr) workers_->GiveBackPlace(caller_);
    }

   private:
    Workers* workers_;
    Callers::Caller caller_;
  };

  // Queues a work. Returns false, and does not run it, if there are too many works in all, or of the caller. `work` may
  // end its place before it returns: a client that knows that it is done may post the next one.
  bool Post(const Callers::Caller& caller, std::function<void(Place)> work);
  // Queues a work of the daemon itself, without a limit.
  void Post(std::function<void()> work);

 private:
  struct Work {
    UserQuota::User user;
    std::function<void()> run;
  };

  explicit Workers(Options options)
      : options_(options), places_(options.max_works, geteuid()), busy_(options.threads, geteuid()) {}
  void Run();
  // Returns the oldest work whose user may have one more thread, or the end of the queue.
  std::deque<Work>::iterator Next() ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool TakePlace(const Callers::Caller& caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveBackPlace(const Callers::Caller& caller);
  bool HasWork() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return Next() != queue_.end() || (closed_ && queue_.empty()); }

  const Options options_;
  absl::Mutex mu_;
  std::deque<Work> queue_ ABSL_GUARDED_BY(mu_);
  UserQuota places_ ABSL_GUARDED_BY(mu_);                           // of works that are queued or run
  UserQuota busy_ ABSL_GUARDED_BY(mu_);                             // threads
  std::map<std::string, int> works_of_token_ ABSL_GUARDED_BY(mu_);  // likewise
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // constant after Start
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_WORKERS_H_
