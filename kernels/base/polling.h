// Bounded waits by polling, for conditions that cannot be waited for.
#ifndef PARAMSHARD_KERNELS_BASE_POLLING_H_
#define PARAMSHARD_KERNELS_BASE_POLLING_H_

#include <algorithm>
#include <chrono>
#include <ctime>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"

namespace paramshard {

struct Polling {
  absl::Duration timeout;
  absl::Duration spinning = absl::ZeroDuration();  // so long without a nap between two looks
};

// Calls `is_done` ever more rarely until it returns true or an error; returns false once the timeout has passed. Always
// calls it at the beginning and after the timeout. Uses a steady clock.
inline absl::StatusOr<bool> Poll(const Polling& polling, absl::FunctionRef<absl::StatusOr<bool>()> is_done) {
  constexpr absl::Duration kShortestNap = absl::Microseconds(5);
  constexpr absl::Duration kLongestNap = absl::Microseconds(50);
  // A nap is this part of the time that was waited before it.
  constexpr int kNapsOfAWait = 16;
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    const absl::Duration waited = absl::FromChrono(std::chrono::steady_clock::now() - start);
    ASSIGN_OR_RETURN(const bool done, is_done());
    if (done) return true;
    if (waited >= polling.timeout) return false;
    if (waited < polling.spinning) continue;
    const timespec nap = absl::ToTimespec(std::clamp(waited / kNapsOfAWait, kShortestNap, kLongestNap));
    nanosleep(&nap, nullptr);
  }
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_BASE_POLLING_H_
