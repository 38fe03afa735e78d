// Request that the daemon stops, and what becomes of its models then.
#ifndef PARAMSHARD_SERVER_PROCESS_STOP_REQUEST_H_
#define PARAMSHARD_SERVER_PROCESS_STOP_REQUEST_H_

#include <atomic>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "server/base/server_command.h"
#include "server/process/keeper_services.h"

namespace paramshard::server {

// Thread-safe.
class StopRequest {
 public:
  // `keeper` outlives it.
  explicit StopRequest(const KeeperServices* keeper) : keeper_(*keeper) {}

  // Returns true for the first request.
  bool Make();
  // Makes the request once the keeper has accepted to start another server afterwards; requires a keeper.
  // `lose_models`: that server has none of this server's models. UNAVAILABLE a stop was requested before; errors of the
  // keeper.
  absl::Status MakeForRestart(const ServerCommandChange& change, bool lose_models);
  // Blocks until the request is made.
  void Await() const { made_.WaitForNotification(); }

  // Returns true if the next server takes over the models as they are, so that nothing is lost.
  bool models_stay() const;
  // Returns true if kept memory of models is dropped at the end.
  bool loses_models() const { return lose_models_; }
  // Returns the error that trainers get when the daemon stops. `saves`: unsaved commits are saved.
  absl::Status Reason(bool saves) const;

 private:
  const KeeperServices& keeper_;
  absl::Mutex restarting_;                   // held during requests to the keeper
  std::atomic<bool> next_is_other_ = false;  // the next server has another command, or must not take the models over
  std::atomic<bool> lose_models_ = false;    // implies next_is_other_
  absl::Mutex making_;                       // held while made_ is notified, which may happen once
  absl::Notification made_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_PROCESS_STOP_REQUEST_H_
