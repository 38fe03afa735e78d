// Futexes: threads of several processes wait on a 32-bit word of shared memory.
#ifndef PARAMSHARD_COMMON_SHARED_MEMORY_FUTEX_H_
#define PARAMSHARD_COMMON_SHARED_MEMORY_FUTEX_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace paramshard::wire {

// Sleeps while `word` holds `seen`, until FutexWake or `timeout`. It may also return without a reason: check again.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t seen, absl::Duration timeout);

// Wakes every waiter of `word`.
void FutexWake(const std::atomic<uint32_t>& word);

// Wait on and wake a word that no other process maps. A process that writes shared memory can neither change it, nor
// wake its sleepers, nor move them to a different word.
void PrivateFutexWait(const std::atomic<uint32_t>& word, uint32_t seen, absl::Duration timeout);
void PrivateFutexWake(const std::atomic<uint32_t>& word);

// Returns true if the kernel lets a thread sleep on two words at once (Linux 5.16).
bool CanWaitForEither();
// Sleeps while `shared_word` and `private_word` hold the values seen, until one of them is woken or `timeout`. It may
// also return without a reason. Requires CanWaitForEither().
void FutexWaitForEither(const std::atomic<uint32_t>& shared_word, uint32_t shared_seen,
                        const std::atomic<uint32_t>& private_word, uint32_t private_seen, absl::Duration timeout);

}  // namespace paramshard::wire

#endif  // PARAMSHARD_COMMON_SHARED_MEMORY_FUTEX_H_
