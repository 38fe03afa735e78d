// What a model may be at most.
#ifndef PARAMSHARD_PROTO_MODEL_LIMITS_H_
#define PARAMSHARD_PROTO_MODEL_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace paramshard {

inline constexpr int64_t kMaxElements = int64_t{1} << 40;
inline constexpr int64_t kMaxParameters = 250'000;
// Largest message that a daemon takes. The spec of as many parameters fits, with names of 100 bytes.
inline constexpr int kMaxMessageBytes = 32 << 20;
// A commit carries hyper-parameters of every group, and must fit a record of the command ring.
inline constexpr int kMaxGroups = 1024;
// Ranks that a model can be cut over; with it the sizes of every checked spec's layout fit int64.
inline constexpr int kMaxShardSize = 4096;
inline constexpr int kMaxFormatRules = 256;
// A trainer that hangs holds the others up for so long at most; no timeout of the daemon is longer.
inline constexpr absl::Duration kMaxStepTimeout = absl::Hours(24);
inline constexpr size_t kMaxClientStateBytes = 64 * 1024;

}  // namespace paramshard

#endif  // PARAMSHARD_PROTO_MODEL_LIMITS_H_
