// Limit of open file descriptors of the process.
#ifndef PARAMSHARD_SERVER_BASE_DESCRIPTOR_LIMIT_H_
#define PARAMSHARD_SERVER_BASE_DESCRIPTOR_LIMIT_H_

#include <cstdint>

#include "absl/status/status.h"

namespace paramshard::server {

// Fewest descriptors that a server or a keeper starts with; a keeper also holds the memory of models.
inline constexpr int64_t kLeastDescriptorsOfServer = 64;
inline constexpr int64_t kLeastDescriptorsOfKeeper = 512;

// The limit in force.
int64_t DescriptorLimit();

// Raises the limit to the highest that the process may give itself, and returns it. The limit that a shell hands down,
// often 1,024, is meant for programs that use select().
int64_t RaiseDescriptorLimit();

// Raises the limit likewise. RESOURCE_EXHAUSTED if the process may not have as many as `least`.
absl::Status RaiseDescriptorLimitTo(int64_t least);

// Returns how many companion connections fit a limit. Each takes two descriptors; half of all descriptors are left for
// gRPC, for the memory of models and sessions, and for files.
int CompanionConnectionsWithin(int64_t descriptor_limit);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_DESCRIPTOR_LIMIT_H_
