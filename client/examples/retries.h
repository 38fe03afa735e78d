// How often, and after which pauses, a trainer tries again.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_RETRIES_H_
#define PARAMSHARD_CLIENT_EXAMPLES_RETRIES_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace paramshard::examples {

// Counts failures in a row. docs/errors.md calls two codes passing ones: ABORTED (another trainer has left; the state
// is read again) and UNAVAILABLE.
//
//   Retries retries;
//   while (true) {
//     const absl::Status status = Train([&] { retries.Reset(); });
//     const std::optional<absl::Duration> pause = retries.Next(status);
//     if (!pause.has_value()) return status;
//     absl::SleepFor(*pause);
//   }
class Retries {
 public:
  // So many in a row take about a quarter of a minute: pauses double from 10 ms up to a second.
  static constexpr int kMax = 20;

  // The pause before the next try. None: the status is no error that passes, or there were kMax without a success.
  std::optional<absl::Duration> Next(const absl::Status& status);

  // Something has succeeded.
  void Reset() { count_ = 0; }

 private:
  int count_ = 0;
};

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_RETRIES_H_
