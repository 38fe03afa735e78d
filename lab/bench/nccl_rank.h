// NCCL inside the trainers' own processes, which benchmarks compare with the daemon's gathers.
#ifndef PARAMSHARD_LAB_BENCH_NCCL_RANK_H_
#define PARAMSHARD_LAB_BENCH_NCCL_RANK_H_

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdint>

#include "absl/status/status.h"

namespace paramshard {

// One rank of a communicator. All ranks make the same calls; a failure ends the process.
class NcclRank {
 public:
  enum class Kind {
    kKernels,
    kZeroCta,  // copy engines: in symmetric windows, in place, no kernel
  };

  // FAILED_PRECONDITION if the library ($PARAMSHARD_NCCL_LIBRARY, else libnccl.so.2) or this build lacks something; the
  // message names it.
  static absl::Status Available(Kind kind);

  // Makes the id of rank 0, for all ranks.
  static ncclUniqueId MakeId();
  // On the current device; waits for the others.
  NcclRank(Kind kind, const ncclUniqueId& id, int rank, int size);
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  // Memory for collectives, as the kind needs it. It lives as long as the process.
  uint8_t* Allocate(int64_t size_bytes) const;

  // In place: rank r's bytes lie at r * bytes_per_rank.
  void AllGather(uint8_t* data, int64_t bytes_per_rank, cudaStream_t stream) const;
  // Sums bf16 values; this rank's `count` of them go to `out`.
  void ReduceScatter(const void* data, void* out, int64_t count, cudaStream_t stream) const;
  // Sums one double, in place.
  void SumOverRanks(double* value, cudaStream_t stream) const;

 private:
  const Kind kind_;
  const int rank_;
  ncclComm_t communicator_ = nullptr;
};

}  // namespace paramshard

#endif  // PARAMSHARD_LAB_BENCH_NCCL_RANK_H_
