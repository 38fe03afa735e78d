// Rounding of offsets and sizes.
#ifndef PARAMSHARD_SERVER_LAYOUT_ALIGN_H_
#define PARAMSHARD_SERVER_LAYOUT_ALIGN_H_

#include <cstdint>

namespace paramshard::server {

// The least multiple of `alignment` that is not below `value` >= 0.
inline int64_t AlignUp(int64_t value, int64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_LAYOUT_ALIGN_H_
