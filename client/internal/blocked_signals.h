// Signals of threads that the library starts.
#ifndef PARAMSHARD_CLIENT_INTERNAL_BLOCKED_SIGNALS_H_
#define PARAMSHARD_CLIENT_INTERNAL_BLOCKED_SIGNALS_H_

#include <pthread.h>
#include <signal.h>

namespace paramshard::internal {

// The host program's signal handlers run on its own threads: threads that start while this object lives have all signals
// blocked.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &saved_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t saved_;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_BLOCKED_SIGNALS_H_
