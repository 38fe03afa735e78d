// Calls of the block trainer's step beside its matrix products: none, calls of the client library, or NCCL.
#ifndef PARAMSHARD_LAB_BENCH_BLOCK_CALLS_H_
#define PARAMSHARD_LAB_BENCH_BLOCK_CALLS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "client/client.h"
#include "lab/bench/block_spec.h"
#include "lab/bench/nccl_rank.h"

namespace paramshard {

// The use of one block in a step.
struct BlockUse {
  int block = 0;
  Phase phase = Phase::kForward;
};
// Forward from the first block to the last, and backward again.
std::vector<BlockUse> PlanStep(int blocks);

// Enqueues, on the trainer's stream or beside it; in a step each use of the plan in order. Here: nothing.
class BlockCalls {
 public:
  virtual ~BlockCalls() = default;

  virtual void BeginStep() {}
  // Lets the stream wait for the weights of the plan's n-th use; and says that it has read them.
  virtual void Await(size_t /*use*/) {}
  virtual void Release() {}
  // Around the products that write a block's gradients: where one of them goes, null: anywhere.
  virtual void BeginGradients(int /*block*/) {}
  virtual void* Gradient(int /*weight*/) { return nullptr; }
  virtual void EndGradients(int /*block*/) {}
  virtual void EndStep() {}
  // Waits until the work that EndStep() has begun is done or enqueued on the stream.
  virtual void Finish() {}
};

// The client library: gathers, two ahead; with `pushes` gradients and a commit too. The model outlives it.
std::unique_ptr<BlockCalls> MakeClientCalls(Model& model, int blocks, bool pushes, cudaStream_t stream);

// FSDP without a daemon: all-gathers two ahead on a stream of their own, bf16 reduce-scatters on another stream, the
// norm over all ranks, and AdamW on the shard. Each of the two communicators is used by one stream.
struct NcclCallsOptions {
  int blocks = 0;
  int rank = 0;
  int ranks = 1;
  bool eight_bit_weights = false;  // gathers of FP8 instead of bf16
  ncclUniqueId gather_id = {};
  ncclUniqueId reduce_id = {};
};
std::unique_ptr<BlockCalls> MakeNcclCalls(const NcclCallsOptions& options, cudaStream_t stream);

}  // namespace paramshard

#endif  // PARAMSHARD_LAB_BENCH_BLOCK_CALLS_H_
