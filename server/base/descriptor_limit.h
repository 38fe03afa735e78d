// How many file descriptors the process may have open.
#ifndef PARAMSHARD_SERVER_BASE_DESCRIPTOR_LIMIT_H_
#define PARAMSHARD_SERVER_BASE_DESCRIPTOR_LIMIT_H_

#include <cstdint>

#include "absl/status/status.h"

namespace paramshard::server {

// With fewer no server starts, and with fewer again no keeper, which holds the memory of models besides.
inline constexpr int64_t kLeastDescriptorsOfServer = 64;
inline constexpr int64_t kLeastDescriptorsOfKeeper = 512;

// The limit in force.
int64_t DescriptorLimit();

// Raises the limit to the highest that the process may give itself, and returns it. What a shell hands down, often
// 1,024, is meant for programs that use select().
int64_t RaiseDescriptorLimit();

// The same. RESOURCE_EXHAUSTED where the process may not have as many as `least`.
absl::Status RaiseDescriptorLimitTo(int64_t least);

// How many companion connections go with a limit. Each takes two descriptors: half of all are left for gRPC, for the
// memory of models and sessions, and for files.
int CompanionConnectionsWithin(int64_t descriptor_limit);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_DESCRIPTOR_LIMIT_H_
