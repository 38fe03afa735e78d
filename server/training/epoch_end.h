// End of an epoch: once, for one reason.
#ifndef PARAMSHARD_SERVER_TRAINING_EPOCH_END_H_
#define PARAMSHARD_SERVER_TRAINING_EPOCH_END_H_

#include <utility>

#include "absl/status/status.h"

namespace paramshard::server {

// The first reason stays. But a lost connection between engines and an aborted vote only show that the epoch has ended
// elsewhere: such a reason is provisional (open) until the coordinator's arrives. Not thread-safe.
class EpochEnd {
 public:
  bool ended() const { return ended_; }
  const absl::Status& why() const { return why_; }
  bool open() const { return open_; }

  // Returns true if this call ends the epoch.
  bool End(const absl::Status& why) { return Set(why, /*open=*/false); }
  bool EndUntilKnown(const absl::Status& why) { return !ended_ && Set(why, /*open=*/true); }
  // Makes the reason final, as if the coordinator had confirmed it.
  void Close() { open_ = false; }

 private:
  bool Set(const absl::Status& why, bool open) {
    if (ended_ && !open_) return false;
    open_ = open;
    why_ = why;
    return !std::exchange(ended_, true);
  }

  bool ended_ = false;
  bool open_ = false;
  absl::Status why_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_EPOCH_END_H_
