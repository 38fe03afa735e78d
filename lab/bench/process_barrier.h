// Where processes that share memory wait for each other.
#ifndef PARAMSHARD_LAB_BENCH_PROCESS_BARRIER_H_
#define PARAMSHARD_LAB_BENCH_PROCESS_BARRIER_H_

#include <atomic>

namespace paramshard {

// A barrier in shared memory. Spins, because the measurement begins a moment later.
class ProcessBarrier {
 public:
  void Await(int count) {
    const int now = round_.load();
    if (arrived_.fetch_add(1) + 1 == count) {
      arrived_ = 0;
      round_.fetch_add(1);
    }
    while (round_.load() == now) {
    }
  }

 private:
  std::atomic<int> arrived_{0};
  std::atomic<int> round_{0};
};

}  // namespace paramshard

#endif  // PARAMSHARD_LAB_BENCH_PROCESS_BARRIER_H_
