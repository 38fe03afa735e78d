// How far a step is, for whoever goes on with it when its process has ended.

#ifndef PARAMSHARD_KERNELS_OPTIM_STEP_PROGRESS_H_
#define PARAMSHARD_KERNELS_OPTIM_STEP_PROGRESS_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "kernels/optim/state_bands.h"

namespace paramshard {

// Where a step writes down which bands (state_bands.h) it has begun and done, in words of 8 bytes in host memory that
// its device may write, and what of it was done before. A lane's words say of how many of its bands that is so. `begun`
// is written before a band's first byte, and `done` when all its bytes are in memory: so of a lane at most one band is
// begun and not done. A step in place is one band, the first of lane 0.
//
//   StepProgress progress{.word = word_of_0_bands, .word_step = growth, .done = done_by_another_process};
//   progress.lanes[0] = {.begun = &words[0], .done = &words[1]};
struct StepProgress {
  struct Lane {
    uint64_t* begun = nullptr;  // aligned; null: nobody asks
    uint64_t* done = nullptr;
  };
  std::array<Lane, kBandLanes> lanes = {};
  uint64_t word = 0;                      // of 0 bands
  uint64_t word_step = 0;                 // by which a word grows with each band
  std::array<int, kBandLanes> done = {};  // bands of each lane that are done already

  uint64_t WordOf(int bands) const { return word + static_cast<uint64_t>(bands) * word_step; }

  // Whether the n-th band in order is done already.
  bool HasDone(int n) const { return n / kBandLanes < done[n % kBandLanes]; }

  // By the thread that steps the n-th band in order. A process that is killed has made all stores up to one of its
  // instructions, so that their order in the program is the one that others find.
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
