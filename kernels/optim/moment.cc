#include "kernels/optim/moment.h"

namespace paramshard {

int64_t MomentBytes(MomentType type) {
  switch (type) {
    case MomentType::kFP32:
      return 4;
    case MomentType::kFP8:
      return 1;
    default:
      return 2;
  }
}

int64_t MomentScaleCount(MomentType type, int64_t rows, int64_t cols) {
  return HasMomentScales(type) ? rows * ((cols + kMomentBlockSize - 1) / kMomentBlockSize) : 0;
}

}  // namespace paramshard
