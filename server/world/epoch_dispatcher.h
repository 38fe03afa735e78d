// Thread that tells a listener the messages of the coordinator.
#ifndef PARAMSHARD_SERVER_WORLD_EPOCH_DISPATCHER_H_
#define PARAMSHARD_SERVER_WORLD_EPOCH_DISPATCHER_H_

#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// Thread-safe. Messages wait until there is a listener and Start was called.
class EpochDispatcher {
 public:
  EpochDispatcher() = default;
  // Waits for a call in progress and drops the remaining messages.
  ~EpochDispatcher();

  // Called once, before the listener is set. RESOURCE_EXHAUSTED no thread.
  absl::Status Start();

  // Waits for a call in progress. Must not be called from the listener.
  void SetListener(EpochListener* listener);

  // Adds a message, which the listener hears after those before it. Returns at once.
  void Add(ToNode message);

 private:
  void Run();

  std::thread thread_;

  absl::Mutex mu_;
  absl::CondVar changed_;
  EpochListener* listener_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::deque<ToNode> messages_ ABSL_GUARDED_BY(mu_);
  bool calling_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_EPOCH_DISPATCHER_H_
