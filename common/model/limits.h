// Limits of a model.
#ifndef PARAMSHARD_COMMON_MODEL_LIMITS_H_
#define PARAMSHARD_COMMON_MODEL_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace paramshard {

inline constexpr int64_t kMaxElements = int64_t{1} << 40;
inline constexpr int64_t kMaxParameters = 250'000;
// Largest number of matrices that have owners, over all parameters: one owner after the other is chosen.
inline constexpr int64_t kMaxOwnedMatrices = 1 << 20;
// Largest message that a daemon accepts. A spec of kMaxParameters with names of 100 bytes fits.
inline constexpr int kMaxMessageBytes = 32 << 20;
// Largest number of groups: a commit with hyper-parameters of every group fits a record of the command ring.
inline constexpr int kMaxGroups = 1024;
// Largest number of ranks that a model can be cut over: the sizes of every checked spec's layout fit int64.
inline constexpr int kMaxShardSize = 4096;
inline constexpr int kMaxFormatRules = 256;
// Longest time that a trainer that hangs can hold up the others; no timeout of the daemon is longer.
inline constexpr absl::Duration kMaxStepTimeout = absl::Hours(24);
inline constexpr size_t kMaxClientStateBytes = 64 * 1024;
// Largest data that a commit gives to readers of its version.
inline constexpr size_t kMaxReaderDataBytes = 4096;

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_LIMITS_H_
