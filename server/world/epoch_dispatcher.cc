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
  ASSIGN_OR_RETURN(thread_, StartThread("news of epochs", [this] { Run(); }));
  return absl::OkStatus();
}

void EpochDispatcher::SetListener(EpochListener* listener) {
  absl::MutexLock lock(&mu_);
  listener_ = listener;
  changed_.SignalAll();
  while (calling_) changed_.Wait(&mu_);
}

void EpochDispatcher::EpochStart(const std::string& model, const server::EpochStart& start) {
  Add([=](EpochListener& listener) { listener.OnEpochStart(model, start); });
}

void EpochDispatcher::LastCommand(const std::string& model, int64_t epoch, int64_t command) {
  Add([=](EpochListener& listener) { listener.OnLastCommand(model, epoch, command); });
}

void EpochDispatcher::CommandsWanted(const std::string& model, int64_t epoch, const CommandsThrough& unless) {
  Add([=](EpochListener& listener) { listener.OnCommandsWanted(model, epoch, unless); });
}

void EpochDispatcher::EpochEnd(const std::string& model, int64_t epoch, const absl::Status& why) {
  Add([=](EpochListener& listener) { listener.OnEpochEnd(model, epoch, why); });
}

void EpochDispatcher::EpochRefused(const std::string& model, const absl::Status& why) {
  Add([=](EpochListener& listener) { listener.OnEpochRefused(model, why); });
}

void EpochDispatcher::SaveNews(const server::SaveNews& news) {
  Add([=](EpochListener& listener) { listener.OnSaveNews(news); });
}

void EpochDispatcher::RestoreNews(const server::RestoreNews& news) {
  Add([=](EpochListener& listener) { listener.OnRestoreNews(news); });
}

void EpochDispatcher::Add(News news) {
  absl::MutexLock lock(&mu_);
  news_.push_back(std::move(news));
  changed_.SignalAll();
}

void EpochDispatcher::Run() {
  while (true) {
    News news;
    EpochListener* listener = nullptr;
    {
      absl::MutexLock lock(&mu_);
      while (!stopped_ && (listener_ == nullptr || news_.empty())) changed_.Wait(&mu_);
      if (stopped_) return;
      listener = listener_;
      news = std::move(news_.front());
      news_.pop_front();
      calling_ = true;
    }
    news(*listener);
    absl::MutexLock lock(&mu_);
    calling_ = false;
    changed_.SignalAll();
  }
}

}  // namespace paramshard::server
