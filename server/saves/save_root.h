// The folder that checkpoints lie in.
#ifndef PARAMSHARD_SERVER_SAVES_SAVE_ROOT_H_
#define PARAMSHARD_SERVER_SAVES_SAVE_ROOT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace paramshard::server {

// ROOT/MODEL (checkpoint::ModelFolderName).
std::string ModelFolder(const std::string& root, absl::string_view model);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SAVES_SAVE_ROOT_H_
