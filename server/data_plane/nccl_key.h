// The key with which NCCL encrypts its own connections.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_NCCL_KEY_H_
#define PARAMSHARD_SERVER_DATA_PLANE_NCCL_KEY_H_

#include <string>

#include "absl/status/statusor.h"

namespace paramshard::server {

// Shortest key that NCCL accepts.
inline constexpr int kLeastNcclKeyBytes = 32;

// Reads the key in the file, a text without trailing white space. FAILED_PRECONDITION naming the file: it cannot be
// read, other users can read it too, or it holds no such key.
absl::StatusOr<std::string> ReadNcclKey(const std::string& path);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_NCCL_KEY_H_
