#include "kernels/base/float_bits.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/gpu/job_list.h"
#include "kernels/optim/muon_kernels.h"
#include "kernels/optim/muon_math.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreadsOfJob = 256;
// Vectors of each array that a thread has in flight.
constexpr int kVectorsOfThread = 4;

// Casts between float32 and what is stored: float or uint16_t (BF16).
__device__ float Decode(float stored) { return stored; }
__device__ float Decode(uint16_t stored) { return DecodeBFloat16(stored); }
__device__ void Encode(float value, float& stored) { stored = CanonicalNan(value); }
__device__ void Encode(float value, uint16_t& stored) { stored = EncodeBFloat16(value); }

template <typename Stored, int kWidth>
struct alignas(sizeof(Stored) * kWidth) Vector {
  Stored elements[kWidth];
};

// `count` is a multiple of kWidth, for which the arrays are aligned.
template <typename Gradient, typename Momentum, int kWidth>
struct MuonJob {
  static constexpr int kThreads = kThreadsOfJob;
  static constexpr int kBlocksAtOnce = 4;
  static constexpr int64_t kElements = int64_t{kThreadsOfJob} * kVectorsOfThread * kWidth;

  __device__ void Run(uint32_t block) const {
    Vector<Gradient, kWidth> gradients[kVectorsOfThread];
    Vector<Momentum, kWidth> momenta[kVectorsOfThread];
    const int64_t first = block * kElements + int64_t{threadIdx.x} * kWidth;
    const auto place = [first](int v) { return first + int64_t{v} * kThreadsOfJob * kWidth; };
#pragma unroll
    for (int v = 0; v < kVectorsOfThread; ++v) {
      if (place(v) >= count) continue;
      gradients[v] = *reinterpret_cast<const Vector<Gradient, kWidth>*>(gradient + place(v));
      momenta[v] = *reinterpret_cast<const Vector<Momentum, kWidth>*>(momentum + place(v));
    }
#pragma unroll
    for (int v = 0; v < kVectorsOfThread; ++v) {
      if (place(v) >= count) continue;
      Vector<uint16_t, kWidth> updates;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float g = Decode(gradients[v].elements[i]);
        Momentum& m = momenta[v].elements[i];
        if (!is_stepped) Encode(MuonMomentum(step, g, Decode(m)), m);
        updates.elements[i] = EncodeBFloat16(MuonUpdate(step, g, Decode(m)));
      }
      if (fresh != nullptr) *reinterpret_cast<Vector<Momentum, kWidth>*>(fresh + place(v)) = momenta[v];
      if (update != nullptr) *reinterpret_cast<Vector<uint16_t, kWidth>*>(update + place(v)) = updates;
    }
  }

  OptimizerStep step;
  const Gradient* gradient;
  const Momentum* momentum;
  Momentum* fresh;
  uint16_t* update;
  int64_t count;
  bool is_stepped;
};

template <typename Gradient, typename Momentum>
class JobsOf {
 public:
  explicit JobsOf(const MuonElements& part)
      : part_(part),
        gradient_(static_cast<const Gradient*>(part.gradient.data)),
        momentum_(static_cast<const Momentum*>(part.momentum.data)),
        fresh_(static_cast<Momentum*>(part.fresh.data)) {}

  void AddTo(JobList& jobs) const {
    constexpr int kWidth = 4;
    const bool is_aligned = IsAligned<kWidth>(gradient_) && IsAligned<kWidth>(momentum_) && IsAligned<kWidth>(fresh_) &&
                            IsAligned<kWidth>(part_.update);
    const int64_t wide = is_aligned ? part_.count / kWidth * kWidth : 0;
    Add<kWidth>(0, wide, jobs);
    Add<1>(wide, part_.count - wide, jobs);
  }

 private:
  template <int kWidth, typename Stored>
  static bool IsAligned(const Stored* data) {
    return reinterpret_cast<uintptr_t>(data) % sizeof(Vector<Stored, kWidth>) == 0;
  }

  template <int kWidth>
  void Add(int64_t first, int64_t count, JobList& jobs) const {
    using Job = MuonJob<Gradient, Momentum, kWidth>;
    if (count == 0) return;
    const auto from = [first](auto* array) { return array == nullptr ? nullptr : array + first; };
    jobs.Add(Job{part_.step, gradient_ + first, momentum_ + first, from(fresh_), from(part_.update), count,
                 part_.is_stepped},
             (count + Job::kElements - 1) / Job::kElements);
  }

  const MuonElements& part_;
  const Gradient* const gradient_;
  const Momentum* const momentum_;
  Momentum* const fresh_;
};

template <typename Gradient>
void AddJobs(const MuonElements& part, JobList& jobs) {
  if (part.momentum.type == MomentType::kBF16) {
    JobsOf<Gradient, uint16_t>(part).AddTo(jobs);
  } else {
    JobsOf<Gradient, float>(part).AddTo(jobs);
  }
}

}  // namespace

absl::Status StepMuon(absl::Span<const MuonElements> parts, cudaStream_t stream) {
  JobList jobs;
  for (const MuonElements& part : parts) {
    if (part.gradient.type == GradientType::kBF16) {
      AddJobs<uint16_t>(part, jobs);
    } else {
      AddJobs<float>(part, jobs);
    }
  }
  return jobs.Launch("step Muon's momentum", stream);
}

}  // namespace paramshard::gpu
