// Threads that carry out calls, all of them started with the daemon.
#ifndef PARAMSHARD_SERVER_SERVICE_WORKERS_H_
#define PARAMSHARD_SERVER_SERVICE_WORKERS_H_

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace paramshard::server {

// A fixed number of threads and a queue with a bound. Nothing that a client does starts a thread later. Thread-safe.
class Workers {
 public:
  struct Options {
    int threads = 1;
    // Most works that wait or run at a time.
    int max_works = 1;
  };
  // RESOURCE_EXHAUSTED at the limit of threads, naming `purpose`.
  static absl::StatusOr<std::unique_ptr<Workers>> Start(absl::string_view purpose, Options options);
  // Carries out what is queued first.
  ~Workers();

  // False when there are too many already; then `work` is not run.
  bool Post(std::function<void()> work);

 private:
  explicit Workers(Options options) : options_(options) {}
  void Run();
  bool HasNews() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return closed_ || !queue_.empty(); }

  const Options options_;
  absl::Mutex mu_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  int works_ ABSL_GUARDED_BY(mu_) = 0;  // queued or running
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // constant after Start
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SERVICE_WORKERS_H_
