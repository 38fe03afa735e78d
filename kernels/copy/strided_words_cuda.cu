#include "kernels/copy/strided_words_cuda.h"
#include "kernels/gpu/job_list.h"

namespace paramshard::gpu {
namespace {

struct StridedJob {
  static constexpr int kThreads = 256;
  static constexpr int kBlocksAtOnce = 1;

  // A word a thread.
  __device__ void Run(uint32_t block) const {
    const int64_t word = int64_t{block} * kThreads + threadIdx.x;
    if (word >= copy.rows * copy.cols) return;
    const int64_t row = word / copy.cols;
    const int64_t col = word % copy.cols;
    const uint8_t* const source = copy.source + 4 * (row * copy.row_stride + col * copy.col_stride);
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value |= uint32_t{source[i]} << (8 * i);
    copy.target[row * copy.target_stride + col] = value;
  }

  StridedWords copy;
};

}  // namespace

absl::Status CopyStridedWords(absl::Span<const StridedWords> copies, cudaStream_t stream) {
  JobList jobs;
  for (const StridedWords& copy : copies) {
    const int64_t words = copy.rows * copy.cols;
    if (words > 0) jobs.Add(StridedJob{copy}, (words + StridedJob::kThreads - 1) / StridedJob::kThreads);
  }
  return jobs.Launch("copy words with strides", stream);
}

}  // namespace paramshard::gpu
