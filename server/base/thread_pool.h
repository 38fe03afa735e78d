// Thread pool that works through lists of tasks.
#ifndef PARAMSHARD_SERVER_BASE_THREAD_POOL_H_
#define PARAMSHARD_SERVER_BASE_THREAD_POOL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace paramshard::server {

// All threads run before the first task begins, so that a shortage of threads changes nothing.
//
//   ASSIGN_OR_RETURN(const auto pool, ThreadPool::Start("a restore", 8));
//   RETURN_IF_ERROR(pool->Run(count, [&](int thread, int64_t index) { return Write(works[index], buffers[thread]); }));
class ThreadPool {
 public:
  // RESOURCE_EXHAUSTED at the limit of threads, naming `purpose`. Requires threads > 0.
  static absl::StatusOr<std::unique_ptr<ThreadPool>> Start(absl::string_view purpose, int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int threads() const { return static_cast<int>(threads_.size()); }

  // Does every task of [0, count) once, small indices first, and waits for all. After an error no further task begins,
  // and the error is returned. One call at a time.
  using Work = absl::FunctionRef<absl::Status(int thread, int64_t index)>;
  absl::Status Run(int64_t count, Work work);

 private:
  ThreadPool() = default;
  void Serve(int thread);
  // Returns the index of the next task; null when the pool ends.
  std::optional<int64_t> Take();
  void Finish(const absl::Status& status);
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return closed_ || next_ < count_; }
  bool IsThrough() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return next_ == count_ && busy_ == 0; }

  absl::Mutex mu_;
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t count_ ABSL_GUARDED_BY(mu_) = 0;
  int busy_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  const Work* work_ = nullptr;        // constant while tasks are under way
  std::vector<std::thread> threads_;  // constant after Start
};

// Does the work of all ranks of [0, ranks) at once, each on its own thread, and waits for all. Returns an error of
// ThreadPool::Start, with nothing done, or the first error of a rank.
absl::Status OnAllRanks(absl::string_view purpose, int ranks, absl::FunctionRef<absl::Status(int rank)> work);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_THREAD_POOL_H_
