// The key with which NCCL encrypts its own connections.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_NCCL_KEY_H_
#define PARAMSHARD_SERVER_COLLECTIVE_NCCL_KEY_H_

#include <string>

#include "absl/status/statusor.h"

namespace paramshard::server {

// Of fewer bytes NCCL takes none.
inline constexpr int kLeastNcclKeyBytes = 32;

// Reads the key that the file holds, a text; what is white at its end is no part of it. FAILED_PRECONDITION naming the
// file: it cannot be read, somebody else can read it too, or it holds no such key.
absl::StatusOr<std::string> ReadNcclKey(const std::string& path);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_COLLECTIVE_NCCL_KEY_H_
