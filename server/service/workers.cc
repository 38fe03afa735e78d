#include "server/service/workers.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "server/base/thread.h"

namespace paramshard::server {

absl::StatusOr<std::unique_ptr<Workers>> Workers::Start(absl::string_view purpose, Options options) {
  std::unique_ptr<Workers> workers(new Workers(options));
  for (int i = 0; i < options.threads; ++i) {
    ASSIGN_OR_RETURN(workers->threads_.emplace_back(), StartThread(purpose, [raw = workers.get()] { raw->Run(); }));
  }
  return workers;
}

Workers::~Workers() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

bool Workers::Post(std::function<void()> work) {
  absl::MutexLock lock(&mu_);
  if (works_ >= options_.max_works) return false;
  ++works_;
  queue_.push_back(std::move(work));
  return true;
}

void Workers::Run() {
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &Workers::HasNews));
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
    work = nullptr;
    absl::MutexLock lock(&mu_);
    --works_;
  }
}

}  // namespace paramshard::server
