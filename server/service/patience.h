// How long a caller may keep a call waiting.
#ifndef PARAMSHARD_SERVER_SERVICE_PATIENCE_H_
#define PARAMSHARD_SERVER_SERVICE_PATIENCE_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace paramshard::server {

// A call waits for its caller for `longest_wait` in all. What the caller sends and takes earns time back, so that one
// who keeps the pace is never late, and one who sends a byte now and then is.
struct Patience {
  absl::Duration longest_wait = absl::Minutes(2);
  int64_t bytes_per_second = 1 << 20;
};

// What is left of it in a call.
class PatienceLeft {
 public:
  explicit PatienceLeft(const Patience& patience) : patience_(patience), left_(patience.longest_wait) {}

  absl::Duration left() const { return left_; }
  // The caller was waited for, and then a message moved. Small ones count as a KiB each, which they cost at least.
  void Spend(absl::Duration waited, int64_t message_bytes) {
    const double earned = static_cast<double>(std::max(message_bytes, kLeastBytes));
    left_ += absl::Seconds(earned / static_cast<double>(patience_.bytes_per_second)) - waited;
    left_ = std::clamp(left_, absl::ZeroDuration(), patience_.longest_wait);
  }

 private:
  static constexpr int64_t kLeastBytes = 1024;

  const Patience patience_;
  absl::Duration left_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SERVICE_PATIENCE_H_
