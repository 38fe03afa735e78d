// Thread that tells a listener the news of epochs.
#ifndef PARAMSHARD_SERVER_WORLD_EPOCH_DISPATCHER_H_
#define PARAMSHARD_SERVER_WORLD_EPOCH_DISPATCHER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// Thread-safe. News wait until there is a listener and Start was called.
class EpochDispatcher {
 public:
  EpochDispatcher() = default;
  // Waits for a call in progress and drops the remaining news.
  ~EpochDispatcher();

  // Called once, before the listener is set. RESOURCE_EXHAUSTED no thread.
  absl::Status Start();

  // Waits for a call in progress. Must not be called from the listener.
  void SetListener(EpochListener* listener);

  // News, in the order in which the listener hears them. Return at once.
  void EpochStart(const std::string& model, const server::EpochStart& start);
  void LastCommand(const std::string& model, int64_t epoch, int64_t command);
  void CommandsWanted(const std::string& model, int64_t epoch, const CommandsThrough& unless);
  void EpochEnd(const std::string& model, int64_t epoch, const absl::Status& why);
  void EpochRefused(const std::string& model, const absl::Status& why);
  void SaveNews(const server::SaveNews& news);
  void RestoreNews(const server::RestoreNews& news);

 private:
  using News = std::function<void(EpochListener&)>;

  void Run();
  void Add(News news);

  std::thread thread_;

  absl::Mutex mu_;
  absl::CondVar changed_;
  EpochListener* listener_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::deque<News> news_ ABSL_GUARDED_BY(mu_);
  bool calling_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_EPOCH_DISPATCHER_H_
