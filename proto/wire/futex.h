// Waiting on a 32-bit word of shared memory, across processes.
#ifndef PARAMSHARD_PROTO_WIRE_FUTEX_H_
#define PARAMSHARD_PROTO_WIRE_FUTEX_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace paramshard::wire {

// Sleeps while `word` holds `seen`, until FutexWake or `timeout`. Returns also without a reason: check again.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t seen, absl::Duration timeout);

// Wakes every waiter of `word`.
void FutexWake(const std::atomic<uint32_t>& word);

}  // namespace paramshard::wire

#endif  // PARAMSHARD_PROTO_WIRE_FUTEX_H_
