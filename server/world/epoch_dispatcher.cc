#include "server/world/epoch_dispatcher.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "server/base/thread.h"

namespace paramshard::server {

EpochDispatcher::~EpochDispatcher() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status EpochDispatcher::Start() {
  ASSIGN_OR_RETURN(thread_, StartThread("messages to models", [this] { Run(); }));
  return absl::OkStatus();
}

void EpochDispatcher::SetListener(EpochListener* listener) {
  absl::MutexLock lock(&mu_);
  listener_ = listener;
  changed_.SignalAll();
  while (calling_) changed_.Wait(&mu_);
}

void EpochDispatcher::Add(ToNode message) {
  absl::MutexLock lock(&mu_);
  messages_.push_back(std::move(message));
  changed_.SignalAll();
}

void EpochDispatcher::Run() {
  while (true) {
    ToNode message;
    EpochListener* listener = nullptr;
    {
      absl::MutexLock lock(&mu_);
      while (!stopped_ && (listener_ == nullptr || messages_.empty())) changed_.Wait(&mu_);
      if (stopped_) return;
      listener = listener_;
      message = std::move(messages_.front());
      messages_.pop_front();
      calling_ = true;
    }
    listener->Hear(message);
    absl::MutexLock lock(&mu_);
    calling_ = false;
    changed_.SignalAll();
  }
}

}  // namespace paramshard::server
