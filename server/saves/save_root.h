// The folder that checkpoints lie in.
#ifndef PARAMSHARD_SERVER_SAVES_SAVE_ROOT_H_
#define PARAMSHARD_SERVER_SAVES_SAVE_ROOT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "server/store/history.h"

namespace paramshard::server {

// ROOT/MODEL (checkpoint::ModelFolderName).
std::string ModelFolder(const std::string& root, absl::string_view model);

// Whether ROOT/MODEL has a checkpoint of a state that a restore would take, as far as it sees before it reads rows.
bool HasWholeCheckpoint(const std::string& root, absl::string_view model, const StateNumbers& numbers);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SAVES_SAVE_ROOT_H_
