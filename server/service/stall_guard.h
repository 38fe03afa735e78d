// Calls whose caller neither sends nor takes anything end.
#ifndef PARAMSHARD_SERVER_SERVICE_STALL_GUARD_H_
#define PARAMSHARD_SERVER_SERVICE_STALL_GUARD_H_

#include <grpcpp/server_context.h>

#include <memory>

#include "absl/time/time.h"

namespace paramshard::server {

// How long a stream of tensors may stand still.
inline constexpr absl::Duration kStallTimeout = absl::Minutes(1);

// Cancels a call that stands still: reads and writes of its stream then fail. It takes no thread.
class StallGuard {
 public:
  // `context` outlives the guard. `timeout` counts from now, and from every Restart.
  StallGuard(const grpc::ServerContext& context, absl::Duration timeout);
  ~StallGuard();
  StallGuard(const StallGuard&) = delete;
  StallGuard& operator=(const StallGuard&) = delete;

  // A message has come or gone.
  void Restart();
  // Whether the call was cancelled here.
  bool stalled() const;

 private:
  class State;
  const std::shared_ptr<State> state_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SERVICE_STALL_GUARD_H_
