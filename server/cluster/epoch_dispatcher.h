// Tells a listener what becomes of epochs, from a thread of its own.
#ifndef PARAMSHARD_SERVER_CLUSTER_EPOCH_DISPATCHER_H_
#define PARAMSHARD_SERVER_CLUSTER_EPOCH_DISPATCHER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/cluster/cluster.h"

namespace paramshard::server {

// Thread-safe. News without a listener wait for one.
class EpochDispatcher {
 public:
  EpochDispatcher() : thread_([this] { Run(); }) {}
  // Waits for a call in progress; news that are left are dropped.
  ~EpochDispatcher();

  // Waits for a call in progress: not to be called by the listener.
  void SetListener(EpochListener* listener);

  // Returns at once; calls come in this order.
  void EpochStart(const std::string& model, int64_t epoch);
  void EpochEnd(const std::string& model, int64_t epoch, const absl::Status& why);

 private:
  struct News {
    bool start = false;
    std::string model;
    int64_t epoch = 0;
    absl::Status why;
  };

  void Run();
  void Add(News news);
  static void Tell(EpochListener& listener, const News& news);

  std::mutex mu_;
  std::condition_variable changed_;

  // Guarded by mu_.
  EpochListener* listener_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::deque<News> news_ ABSL_GUARDED_BY(mu_);
  bool calling_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;  // last: it uses the rest
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_EPOCH_DISPATCHER_H_
