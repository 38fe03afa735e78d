// Texts of the commands about checkpoints.
#ifndef PARAMSHARD_CLIENT_CTL_CHECKPOINT_TEXT_H_
#define PARAMSHARD_CLIENT_CTL_CHECKPOINT_TEXT_H_

#include <string>

#include "CLI/CLI.hpp"
#include "absl/time/time.h"
#include "common/checkpoint/manifest.h"
#include "nlohmann/json.hpp"

namespace paramshard::ctl {

// Adds the argument of these commands.
inline void AddFolderArgument(CLI::App& app, std::string& folder, const std::string& help) {
  app.add_option("folder", folder, help)->required();
}

// Formats a time as TimeCell does.
std::string SavedAtCell(absl::Time time);

// The numbers of a checkpoint, with names and types as the protos' JSON has them: 64-bit numbers are texts.
nlohmann::ordered_json CheckpointJson(const std::string& folder, const checkpoint::Manifest& manifest);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_CHECKPOINT_TEXT_H_
