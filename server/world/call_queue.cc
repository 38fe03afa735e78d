#include "server/world/call_queue.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "server/base/thread.h"

namespace paramshard::server {

absl::StatusOr<std::unique_ptr<CallQueue>> CallQueue::Start() {
  std::unique_ptr<CallQueue> queue(new CallQueue);
  ASSIGN_OR_RETURN(queue->thread_, StartThread("calls to the coordinator", [raw = queue.get()] { raw->Run(); }));
  return queue;
}

CallQueue::~CallQueue() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void CallQueue::Add(std::function<void()> call) {
  absl::MutexLock lock(&mu_);
  calls_.push_back(std::move(call));
  ++added_;
  changed_.SignalAll();
}

void CallQueue::Finish() {
  absl::MutexLock lock(&mu_);
  const int64_t last = added_;
  while (made_ < last) changed_.Wait(&mu_);
}

void CallQueue::Run() {
  absl::MutexLock lock(&mu_);
  while (true) {
    while (calls_.empty() && !stopped_) changed_.Wait(&mu_);
    if (calls_.empty()) return;
    std::function<void()> call = std::move(calls_.front());
    calls_.pop_front();
    mu_.Unlock();
    call();
    call = nullptr;
    mu_.Lock();
    ++made_;
    changed_.SignalAll();
  }
}

}  // namespace paramshard::server
