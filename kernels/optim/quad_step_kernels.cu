#include "kernels/optim/step_rows_cuda.h"

namespace paramshard::gpu {
namespace {

template <int kCount>
DeviceKernel KernelOf(const KernelKind& kind) {
  switch (kind.moments) {
    case KernelMoments::kFP32:
      return StepKernelOf<QuadAccess, kCount, KernelMoments::kFP32>(kind);
    case KernelMoments::kBF16:
      return StepKernelOf<QuadAccess, kCount, KernelMoments::kBF16>(kind);
    case KernelMoments::kFP16:
      return StepKernelOf<QuadAccess, kCount, KernelMoments::kFP16>(kind);
    case KernelMoments::kFP8:
      return StepKernelOf<QuadAccess, kCount, KernelMoments::kFP8>(kind);
    case KernelMoments::kAny:
      if constexpr (kCount > 1) return StepKernelOf<QuadAccess, kCount, KernelMoments::kAny>(kind);
      break;  // one moment has one type
  }
  return {};
}

}  // namespace

DeviceKernel QuadStepKernel(const KernelKind& kind) {
  static_assert(kMomentCount == 2, "a number of moments without kernels");
  switch (kind.moment_count) {
    case 0:
      return StepKernelOf<QuadAccess, 0, KernelMoments::kFP32>(kind);
    case 1:
      return KernelOf<1>(kind);
    case 2:
      return KernelOf<2>(kind);
  }
  return {};
}

DeviceKernel QuadEncodeKernel(StepTiles tiles) { return EncodeKernelOf<QuadAccess>(tiles); }

}  // namespace paramshard::gpu
