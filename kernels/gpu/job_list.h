// Pieces of work of several kinds; one launch runs many of one kind. For CUDA sources.
//
//   struct Scaling {
//     static constexpr int kThreads = 256, kBlocksAtOnce = 4;  // threads of a block; blocks of a multiprocessor
//     __device__ void Run(uint32_t block) const;               // index in [0, blocks)
//     ...
//   };
//   JobList jobs;
//   jobs.Add(Scaling{...}, blocks);
//   status = jobs.Launch("scale", stream);

#ifndef PARAMSHARD_KERNELS_GPU_JOB_LIST_H_
#define PARAMSHARD_KERNELS_GPU_JOB_LIST_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/gpu/status.h"

namespace paramshard::gpu {

// Largest number of jobs in one launch. They are kernel parameters, so more would slow down every launch.
constexpr int kJobsOfLaunch = 16;

template <typename Job>
struct JobTable {
  Job jobs[kJobsOfLaunch];
  uint32_t end_blocks[kJobsOfLaunch];  // of the grid: a job's blocks come before it
};

template <typename Job>
__global__ __launch_bounds__(Job::kThreads,
                             Job::kBlocksAtOnce) void RunJobs(const __grid_constant__ JobTable<Job> table) {
  int index = 0;
  while (blockIdx.x >= table.end_blocks[index]) ++index;
  table.jobs[index].Run(blockIdx.x - (index == 0 ? 0 : table.end_blocks[index - 1]));
}

// Jobs that may run in any order. Jobs are plain values.
class JobList {
 public:
  // `blocks` > 0; the blocks of any 16 jobs together are below 2^31.
  template <typename Job>
  void Add(const Job& job, int64_t blocks) {
    static_assert(std::is_trivially_copyable_v<Job> && sizeof(Job) <= kMostBytes && alignof(Job) <= 8);
    Entry entry = {LaunchTable<Job>, static_cast<uint32_t>(blocks), {}};
    std::memcpy(entry.job, &job, sizeof(job));
    entries_.push_back(entry);
  }

  // Enqueues all jobs on the current device. `what` names them in messages.
  absl::Status Launch(absl::string_view what, cudaStream_t stream) {
    const auto less = [](const Entry& a, const Entry& b) { return std::less<>()(a.launch, b.launch); };
    std::stable_sort(entries_.begin(), entries_.end(), less);
    absl::Span<const Entry> left = entries_;
    while (!left.empty()) {
      size_t count = 1;
      while (count < std::min<size_t>(left.size(), kJobsOfLaunch) && left[count].launch == left[0].launch) ++count;
      left[0].launch(left.first(count), stream);
      left.remove_prefix(count);
    }
    return LaunchStatus(what);
  }

 private:
  static constexpr size_t kMostBytes = 128;

  struct Entry {
    void (*launch)(absl::Span<const Entry> entries, cudaStream_t stream);
    uint32_t blocks;
    alignas(8) std::byte job[kMostBytes];
  };

  template <typename Job>
  static void LaunchTable(absl::Span<const Entry> entries, cudaStream_t stream) {
    JobTable<Job> table;
    uint32_t blocks = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
      std::memcpy(&table.jobs[i], entries[i].job, sizeof(Job));
      table.end_blocks[i] = blocks += entries[i].blocks;
    }
    RunJobs<Job><<<blocks, Job::kThreads, 0, stream>>>(table);
  }

  std::vector<Entry> entries_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_JOB_LIST_H_
