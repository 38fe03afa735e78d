#include "server/cluster/epoch_dispatcher.h"

#include <utility>

namespace paramshard::server {

EpochDispatcher::~EpochDispatcher() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    stopped_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void EpochDispatcher::SetListener(EpochListener* listener) {
  std::unique_lock<std::mutex> lock(mu_);
  listener_ = listener;
  changed_.notify_all();
  changed_.wait(lock, [this] { return !calling_; });
}

void EpochDispatcher::EpochStart(const std::string& model, int64_t epoch) {
  Add({true, model, epoch, absl::OkStatus()});
}

void EpochDispatcher::EpochEnd(const std::string& model, int64_t epoch, const absl::Status& why) {
  Add({false, model, epoch, why});
}

void EpochDispatcher::Add(News news) {
  std::lock_guard<std::mutex> lock(mu_);
  news_.push_back(std::move(news));
  changed_.notify_all();
}

void EpochDispatcher::Tell(EpochListener& listener, const News& news) {
  if (news.start) {
    listener.OnEpochStart(news.model, news.epoch);
  } else {
    listener.OnEpochEnd(news.model, news.epoch, news.why);
  }
}

void EpochDispatcher::Run() {
  std::unique_lock<std::mutex> lock(mu_);
  for (;;) {
    changed_.wait(lock, [this] { return stopped_ || (listener_ != nullptr && !news_.empty()); });
    if (stopped_) return;
    EpochListener* const listener = listener_;
    const News news = std::move(news_.front());
    news_.pop_front();
    calling_ = true;
    lock.unlock();
    Tell(*listener, news);
    lock.lock();
    calling_ = false;
    changed_.notify_all();
  }
}

}  // namespace paramshard::server
