// The matrix products of Llama-3-8B blocks, forward and backward: the load of a trainer's GPU in benchmarks.
#ifndef PARAMSHARD_LAB_BENCH_BLOCK_PRODUCTS_H_
#define PARAMSHARD_LAB_BENCH_BLOCK_PRODUCTS_H_

#include <cuda_runtime.h>

#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/stream.h"
#include "lab/bench/blas.h"
#include "lab/bench/block_calls.h"

namespace paramshard {

// Average times of a step.
struct StepTimes {
  double seconds = 0;
  double between_steps = 0;  // seconds too
};

// Steps of these products, with their operands, on one GPU.
class BlockProducts {
 public:
  BlockProducts(int gpu, int blocks, int tokens);

  cudaStream_t stream() const { return compute_.get(); }

  // Without products of gathers only. `enqueued` is called when the GPU has all of it to do.
  StepTimes Run(
      BlockCalls& calls, int steps, bool products, absl::FunctionRef<void()> enqueued = [] {});

  // Seconds of each step of the last run, from its first product to the first product of the next step, or to the end.
  const std::vector<double>& step_seconds() const { return step_seconds_; }

 private:
  class Event;

  static void Randomize(const gpu::DeviceMemory& memory);
  void Step(BlockCalls& calls, bool products, Event& begin, Event& end);
  void Forward() const;
  void Backward(int block, BlockCalls& calls);

  const std::vector<BlockUse> plan_;
  const int tokens_;
  const gpu::Stream compute_;
  const Blas blas_;
  std::vector<double> step_seconds_;
  gpu::DeviceMemory activations_, outputs_, weights_, gradient_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_LAB_BENCH_BLOCK_PRODUCTS_H_
