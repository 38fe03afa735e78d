// Checks a commit's options, and makes the command that carries them.
#ifndef PARAMSHARD_CLIENT_INTERNAL_COMMIT_COMMAND_H_
#define PARAMSHARD_CLIENT_INTERNAL_COMMIT_COMMAND_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::internal {

// INVALID_ARGUMENT naming the group and the hyper-parameter that is not finite or out of range, a wrong number of
// groups, or a client state that is too large. An error found here ends the call; found by the daemon it would end the
// epoch.
absl::StatusOr<v1::Commit> MakeCommit(const CommitOptions& options, int group_count, int64_t commit_number);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_COMMIT_COMMAND_H_
