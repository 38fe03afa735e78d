// Progress of a step, from which another process can finish the step when its process has ended.

#ifndef PARAMSHARD_KERNELS_OPTIM_STEP_PROGRESS_H_
#define PARAMSHARD_KERNELS_OPTIM_STEP_PROGRESS_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "kernels/optim/state_bands.h"

namespace paramshard {

// The bands (state_bands.h) that a step has begun and done, recorded in words of 8 bytes in host memory that its device
// may write, and the bands that were done before. A lane's words count its bands. `begun` is written before a band's
// first byte, and `done` when all its bytes are in memory, so at most one band of a lane is begun and not done. A step
// in place is one band, the first of lane 0.
//
//   StepProgress progress{.word = word_of_0_bands, .word_step = growth, .done = done_by_another_process};
//   progress.lanes[0] = {.begun = &words[0], .done = &words[1]};
struct StepProgress {
  struct Lane {
    uint64_t* begun = nullptr;  // aligned; null: not recorded
    uint64_t* done = nullptr;
  };
  std::array<Lane, kBandLanes> lanes = {};
  uint64_t word = 0;                      // of 0 bands
  uint64_t word_step = 0;                 // by which a word grows with each band
  std::array<int, kBandLanes> done = {};  // bands of each lane that are done already

  uint64_t WordOf(int bands) const { return word + static_cast<uint64_t>(bands) * word_step; }

  // Returns true if the n-th band in order was done before.
  bool HasDone(int n) const { return n / kBandLanes < done[n % kBandLanes]; }

  // Called by the thread that steps the n-th band in order. A killed process has made all stores up to some
  // instruction, so other processes see them in program order.
  void MarkBegun(int n) const {
    Store(lanes[n % kBandLanes].begun, WordOf(n / kBandLanes + 1));
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void MarkDone(int n) const { Store(lanes[n % kBandLanes].done, WordOf(n / kBandLanes + 1)); }

 private:
  static void Store(uint64_t* word, uint64_t value) {
    if (word != nullptr) std::atomic_ref<uint64_t>(*word).store(value, std::memory_order_release);
  }
};

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_STEP_PROGRESS_H_
