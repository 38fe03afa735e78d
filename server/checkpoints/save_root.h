// The folder that holds checkpoints.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_SAVE_ROOT_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_SAVE_ROOT_H_

#include <cstdint>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/strings/string_view.h"

namespace paramshard::server {

// ROOT/MODEL (checkpoint::ModelFolderName).
std::string ModelFolder(const std::string& root, absl::string_view model);

// Returns true if ROOT/MODEL has a checkpoint of this commit of a history that a restore would accept, as far as it
// sees before it reads rows.
bool HasWholeCheckpoint(const std::string& root, absl::string_view model, int64_t step, absl::uint128 history);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_SAVE_ROOT_H_
