#include "kernels/random/initial_values_cuda.h"

#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/gpu/status.h"
#include "kernels/random/initial_values_math.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1 << 16;

struct ConstantValues {
  float value;

  __device__ float operator()(uint64_t) const { return value; }
};

struct UniformValues {
  uint64_t seed;
  uint64_t parameter_index;
  float low;
  float high;

  __device__ float operator()(uint64_t element) const {
    return UniformValue(ElementWords(seed, parameter_index, element), low, high);
  }
};

struct NormalValues {
  uint64_t seed;
  uint64_t parameter_index;
  float mean;
  float standard_deviation;

  __device__ float operator()(uint64_t element) const {
    return NormalValue(ElementWords(seed, parameter_index, element), mean, standard_deviation);
  }
};

struct TruncatedNormalValues {
  uint64_t seed;
  uint64_t parameter_index;
  TruncatedNormal normal;

  __device__ float operator()(uint64_t element) const {
    return TruncatedNormalValue(ElementWords(seed, parameter_index, element), normal);
  }
};

template <typename Values>
__global__ __launch_bounds__(kThreads) void FillKernel(Values values, uint64_t first_element, int64_t count,
                                                       float* out) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    out[i] = values(first_element + static_cast<uint64_t>(i));
  }
}

template <typename Values>
absl::Status Fill(const Values& values, int64_t first_element, int64_t count, float* out, cudaStream_t stream) {
  if (count == 0) return absl::OkStatus();
  const int64_t blocks = std::min(kMostBlocks, (count + kThreads - 1) / kThreads);
  FillKernel<<<static_cast<unsigned int>(blocks), kThreads, 0, stream>>>(values, static_cast<uint64_t>(first_element),
                                                                         count, out);
  return LaunchStatus("fill initial values");
}

absl::Status FillByKind(const InitialValue& value, uint64_t seed, int64_t parameter_index, int64_t first_element,
                        int64_t count, float* out, cudaStream_t stream) {
  const auto index = static_cast<uint64_t>(parameter_index);
  switch (value.kind) {
    case Initializer::kZeros:
      return Fill(ConstantValues{0.0f}, first_element, count, out, stream);
    case Initializer::kOnes:
      return Fill(ConstantValues{1.0f}, first_element, count, out, stream);
    case Initializer::kConstant:
      return Fill(ConstantValues{value.a}, first_element, count, out, stream);
    case Initializer::kNormal:
      return Fill(NormalValues{seed, index, value.a, value.b}, first_element, count, out, stream);
    case Initializer::kUniform:
      return Fill(UniformValues{seed, index, value.a, value.b}, first_element, count, out, stream);
    case Initializer::kTruncatedNormal:
      return Fill(TruncatedNormalValues{seed, index, MakeTruncatedNormal(value)}, first_element, count, out, stream);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FillInitialValues(const InitialValue& value, uint64_t seed, int64_t parameter_index, int64_t first_element,
                               int64_t count, float* out, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckInitialValue(value));
  RETURN_IF_ERROR(FillByKind(value, seed, parameter_index, first_element, count, out, stream));
  const ZeroedElements zeroed = ZeroedAmong(value, first_element, count);
  if (zeroed.count == 0) return absl::OkStatus();
  return Fill(ConstantValues{0.0f}, 0, zeroed.count, out + zeroed.begin, stream);
}

}  // namespace paramshard::gpu
