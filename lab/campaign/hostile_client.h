// Clients that send their daemon data that no client library would send.
#ifndef PARAMSHARD_LAB_CAMPAIGN_HOSTILE_CLIENT_H_
#define PARAMSHARD_LAB_CAMPAIGN_HOSTILE_CLIENT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace paramshard::test {

// Calls random methods of the daemon's services, but for Drain, with a valid token, and with messages whose fields are
// random and whose bytes are changed; their model, where a request names one, is `model`. Returns how many calls were
// answered at all.
absl::StatusOr<int> SendMutatedRequests(const std::string& socket_dir, const std::string& model, int count,
                                        uint64_t seed);

// Opens companion connections, sends random packets with random descriptors, and leaves.
absl::Status SendCompanionNoise(const std::string& socket_dir, int count, uint64_t seed);

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_HOSTILE_CLIENT_H_
