// AdamW of a trainer without a daemon, on its shard: the step of torch.optim.AdamW(fused=True), and a cast of the
// weights for the next gather.
#ifndef PARAMSHARD_LAB_BENCH_PLAIN_ADAMW_H_
#define PARAMSHARD_LAB_BENCH_PLAIN_ADAMW_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace paramshard {

// Arrays of `count` elements, a multiple of 4, in memory of the GPU.
struct PlainAdamW {
  const uint16_t* gradient = nullptr;  // bf16
  float* parameter = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  void* weight = nullptr;  // gathered weights: bf16, or E4M3 without scales
  bool eight_bit_weight = false;
  int64_t count = 0;
  double* square_sum = nullptr;  // of all gradients
  int64_t step = 1;
  float learning_rate = 1e-4f;
  float max_grad_norm = 1.0f;
};

// Adds the shard's sum of squares to *square_sum. In no fixed order: a yardstick, not ours.
void AddSquares(const PlainAdamW& step, cudaStream_t stream);
// One step, clipped to the norm.
void StepAdamW(const PlainAdamW& step, cudaStream_t stream);

}  // namespace paramshard

#endif  // PARAMSHARD_LAB_BENCH_PLAIN_ADAMW_H_
