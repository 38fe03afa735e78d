// Rounding of offsets and sizes.
#ifndef PARAMSHARD_KERNELS_BASE_ALIGN_H_
#define PARAMSHARD_KERNELS_BASE_ALIGN_H_

#include <cstdint>

namespace paramshard {

// The least multiple of `alignment` that is not below `value` >= 0.
inline int64_t AlignUp(int64_t value, int64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_BASE_ALIGN_H_
