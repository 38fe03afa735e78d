#include "kernels/base/float_bits.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/gpu/job_list.h"
#include "kernels/optim/muon_kernels.h"
#include "kernels/optim/muon_math.h"

namespace paramshard::gpu {
namespace {

// Elements of FP32 or BF16.
struct Elements {
  void* data;
  bool is_bf16;

  __device__ float Load(int64_t i) const {
    return is_bf16 ? DecodeBFloat16(static_cast<const uint16_t*>(data)[i]) : static_cast<const float*>(data)[i];
  }
  __device__ void Store(int64_t i, float value) const {
    if (is_bf16) {
      static_cast<uint16_t*>(data)[i] = EncodeBFloat16(value);
    } else {
      static_cast<float*>(data)[i] = CanonicalNan(value);
    }
  }
  // Returns the value as it is stored.
  __device__ float Rounded(float value) const {
    return is_bf16 ? DecodeBFloat16(EncodeBFloat16(value)) : CanonicalNan(value);
  }
};

constexpr int kThreadsOfJob = 256;
constexpr int64_t kElementsOfBlock = 4096;

// Calls `visit` with the elements of this thread.
template <typename Visit>
__device__ void ForEachElement(uint32_t block, int64_t count, const Visit& visit) {
  const int64_t first = int64_t{block} * kElementsOfBlock;
  const int64_t end = first + kElementsOfBlock < count ? first + kElementsOfBlock : count;
  for (int64_t i = first + threadIdx.x; i < end; i += kThreadsOfJob) visit(i);
}

struct MomentumJob {
  static constexpr int kThreads = kThreadsOfJob;
  static constexpr int kBlocksAtOnce = 4;

  __device__ void Run(uint32_t block) const {
    ForEachElement(block, count, [&](int64_t i) { fresh.Store(i, MuonMomentum(step, gradient.Load(i), old.Load(i))); });
  }

  OptimizerStep step;
  Elements gradient, old, fresh;
  int64_t count;
};

struct UpdateJob {
  static constexpr int kThreads = kThreadsOfJob;
  static constexpr int kBlocksAtOnce = 4;

  __device__ void Run(uint32_t block) const {
    ForEachElement(block, count, [&](int64_t i) {
      const float g = gradient.Load(i);
      float m = momentum.Load(i);
      if (is_old) m = momentum.Rounded(MuonMomentum(step, g, m));
      update[i] = EncodeBFloat16(MuonUpdate(step, g, m));
    });
  }

  OptimizerStep step;
  Elements gradient, momentum;
  uint16_t* update;
  int64_t count;
  bool is_old;
};

Elements ElementsOf(const ConstGradient& gradient) {
  return {const_cast<void*>(gradient.data), gradient.type == GradientType::kBF16};
}
Elements ElementsOf(const MutableMoment& moment) { return {moment.data, moment.type == MomentType::kBF16}; }

int64_t BlocksFor(int64_t count) { return (count + kElementsOfBlock - 1) / kElementsOfBlock; }

}  // namespace

absl::Status StepMuonMomentum(absl::Span<const MuonElements> parts, cudaStream_t stream) {
  JobList jobs;
  for (const MuonElements& part : parts) {
    if (part.count == 0) continue;
    jobs.Add(
        MomentumJob{part.step, ElementsOf(part.gradient), ElementsOf(part.old), ElementsOf(part.fresh), part.count},
        BlocksFor(part.count));
  }
  return jobs.Launch("step Muon's momentum", stream);
}

absl::Status MakeMuonUpdate(absl::Span<const MuonUpdateElements> parts, cudaStream_t stream) {
  JobList jobs;
  for (const MuonUpdateElements& part : parts) {
    const MuonElements& elements = part.elements;
    if (elements.count == 0) continue;
    const bool is_old = elements.fresh.data == nullptr;
    jobs.Add(UpdateJob{elements.step, ElementsOf(elements.gradient), ElementsOf(is_old ? elements.old : elements.fresh),
                       part.update, elements.count, is_old},
             BlocksFor(elements.count));
  }
  return jobs.Launch("make Muon's update", stream);
}

}  // namespace paramshard::gpu
