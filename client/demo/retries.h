// Number and pauses of a trainer's retries.
#ifndef PARAMSHARD_CLIENT_DEMO_RETRIES_H_
#define PARAMSHARD_CLIENT_DEMO_RETRIES_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace paramshard::demo {

// Counts failures in a row. Two codes are worth a retry (docs/reference/errors.md): ABORTED (another trainer has left;
// the state is read again) and UNAVAILABLE.
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
  // Largest number of retries in a row. They take about a quarter of a minute: pauses double from 10 ms up to a second.
  static constexpr int kMax = 20;

  // Returns the pause before the next try; nullopt if the error is permanent or kMax tries have failed in a row.
  std::optional<absl::Duration> Next(const absl::Status& status);

  // Call after a success.
  void Reset() { count_ = 0; }

 private:
  int count_ = 0;
};

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_RETRIES_H_
