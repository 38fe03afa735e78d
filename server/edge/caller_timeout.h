// Longest time that a call waits for its caller.
#ifndef PARAMSHARD_SERVER_EDGE_CALLER_TIMEOUT_H_
#define PARAMSHARD_SERVER_EDGE_CALLER_TIMEOUT_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace paramshard::server {

// A call waits for its caller for `longest_wait` in all. Bytes that the caller sends or takes earn time back: a caller
// that keeps the pace is never late, but one that sends a byte now and then is.
struct CallerTimeout {
  absl::Duration longest_wait = absl::Minutes(2);
  int64_t bytes_per_second = 1 << 20;
};

// Time that a call may still wait for its caller.
class CallerTimeLeft {
 public:
  explicit CallerTimeLeft(const CallerTimeout& timeout) : timeout_(timeout), left_(timeout.longest_wait) {}

  absl::Duration left() const { return left_; }
  // Subtracts a wait for the caller, and adds the time that its message earns. Small messages count as a KiB each,
  // which is their least cost.
  void Spend(absl::Duration waited, int64_t message_bytes) {
    const double earned = static_cast<double>(std::max(message_bytes, kLeastBytes));
    left_ += absl::Seconds(earned / static_cast<double>(timeout_.bytes_per_second)) - waited;
    left_ = std::clamp(left_, absl::ZeroDuration(), timeout_.longest_wait);
  }

 private:
  static constexpr int64_t kLeastBytes = 1024;

  const CallerTimeout timeout_;
  absl::Duration left_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_CALLER_TIMEOUT_H_
