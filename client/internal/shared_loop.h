// A loop that several threads share.
#ifndef PARAMSHARD_CLIENT_INTERNAL_SHARED_LOOP_H_
#define PARAMSHARD_CLIENT_INTERNAL_SHARED_LOOP_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace paramshard::internal {

// Returns the number of CPUs that this process may use, at most 16.
int SharedLoopThreads();

struct SharedLoop {
  int64_t count = 0;
  int threads = 1;  // the calling one and others; fewer where none can be started
  // Called by all threads, with the indices in ascending order.
  absl::FunctionRef<absl::Status(int64_t index)> body;
  // Called by the calling thread now and then; an error ends the loop.
  absl::FunctionRef<absl::Status()> ask;
};

// On return no body runs any more. Returns the error of the least index that has failed, else that of `ask`.
absl::Status RunShared(const SharedLoop& loop);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_SHARED_LOOP_H_
