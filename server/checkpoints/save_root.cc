#include "server/checkpoints/save_root.h"

#include <unistd.h>

#include <filesystem>

#include "common/checkpoint/reader.h"
#include "common/checkpoint/step_folder.h"

namespace paramshard::server {

std::string ModelFolder(const std::string& root, absl::string_view model) {
  return (std::filesystem::path(root) / checkpoint::ModelFolderName(model)).string();
}

bool HasWholeCheckpoint(const std::string& root, absl::string_view model, int64_t step, absl::uint128 history) {
  const std::string name = checkpoint::StepFolderName(step, history);
  const auto reader =
      checkpoint::Reader::Open((std::filesystem::path(ModelFolder(root, model)) / name).string(), {.owner = geteuid()});
  return reader.ok() && reader->manifest().history == history;
}

}  // namespace paramshard::server
