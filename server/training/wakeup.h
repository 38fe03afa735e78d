// Wakes one of the daemon's own threads.
#ifndef PARAMSHARD_SERVER_TRAINING_WAKEUP_H_
#define PARAMSHARD_SERVER_TRAINING_WAKEUP_H_

#include <atomic>
#include <cstdint>

#include "common/shared_memory/futex.h"

namespace paramshard::server {

// A futex that no other process maps: unlike the doorbell of a words page, no trainer can suppress it. Thread-safe; one
// thread listens.
class Wakeup {
 public:
  void Ring() {
    rings_.fetch_add(1, std::memory_order_seq_cst);
    if (listens_.load(std::memory_order_seq_cst)) wire::PrivateFutexWake(rings_);
  }

  // Counts up with every ring.
  const std::atomic<uint32_t>& rings() const { return rings_; }
  // Called by the listening thread: with true before it reads rings() for the last time and sleeps on it, with false
  // when it is awake again.
  void Listen(bool sleeps) { listens_.store(sleeps, std::memory_order_seq_cst); }

 private:
  std::atomic<uint32_t> rings_{0};
  std::atomic<bool> listens_{false};
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_WAKEUP_H_
