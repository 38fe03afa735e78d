#include "server/base/thread_pool.h"

#include <utility>

#include "server/base/thread.h"

namespace paramshard::server {

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::Start(absl::string_view purpose, int threads) {
  std::unique_ptr<ThreadPool> pool(new ThreadPool());
  for (int i = 0; i < threads; ++i) {
    absl::StatusOr<std::thread> thread = StartThread(purpose, [raw = pool.get(), i] { raw->Serve(i); });
    if (!thread.ok()) return thread.status();
    pool->threads_.push_back(*std::move(thread));
  }
  return pool;
}

ThreadPool::~ThreadPool() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

absl::Status ThreadPool::Run(int64_t count, Work work) {
  absl::MutexLock lock(&mu_);
  work_ = &work;
  status_ = absl::OkStatus();
  next_ = 0;
  count_ = count;
  mu_.Await(absl::Condition(this, &ThreadPool::IsThrough));
  return status_;
}

void ThreadPool::Serve(int thread) {
  while (const std::optional<int64_t> index = Take()) Finish((*work_)(thread, *index));
}

std::optional<int64_t> ThreadPool::Take() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &ThreadPool::HasWork));
  if (closed_) return std::nullopt;
  ++busy_;
  return next_++;
}

void ThreadPool::Finish(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  --busy_;
  if (status.ok() || !status_.ok()) return;
  status_ = status;
  next_ = count_;
}

absl::Status OnAllRanks(absl::string_view purpose, int ranks, absl::FunctionRef<absl::Status(int rank)> work) {
  const absl::StatusOr<std::unique_ptr<ThreadPool>> pool = ThreadPool::Start(purpose, ranks);
  if (!pool.ok()) return pool.status();
  return (*pool)->Run(ranks, [&](int, int64_t rank) { return work(static_cast<int>(rank)); });
}

}  // namespace paramshard::server
