#include "server/saves/save_root.h"

#include <filesystem>

#include "proto/checkpoint/step_folder.h"

namespace paramshard::server {

std::string ModelFolder(const std::string& root, absl::string_view model) {
  return (std::filesystem::path(root) / checkpoint::ModelFolderName(model)).string();
}

}  // namespace paramshard::server
