#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/ctl/cell.h"
#include "client/ctl/checkpoint_text.h"
#include "client/ctl/commands.h"
#include "client/ctl/table.h"
#include "common/checkpoint/content_hash.h"
#include "common/checkpoint/step_folder.h"

namespace paramshard::ctl {
namespace {

namespace fs = std::filesystem;
using checkpoint::StepEntry;

// Returns the checkpoints of a model's folder; of a folder without any, the checkpoints of the folders in it.
absl::StatusOr<std::vector<StepEntry>> StepsBelow(const std::string& folder) {
  ASSIGN_OR_RETURN(std::vector<StepEntry> steps, checkpoint::ListSteps(folder));
  if (!steps.empty()) return steps;
  std::vector<std::string> models;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) models.push_back(entry->path().string());
  }
  std::sort(models.begin(), models.end());
  for (const std::string& model : models) {
    absl::StatusOr<std::vector<StepEntry>> more = checkpoint::ListSteps(model);
    // Other folders need not be readable.
    if (!more.ok()) continue;
    for (StepEntry& step : *more) steps.push_back(std::move(step));
  }
  return steps;
}

std::string StepsText(const std::vector<StepEntry>& steps) {
  if (steps.empty()) return "no checkpoints\n";
  Table table({Right("SERIAL"), Left("MODEL"), Right("STEP"), Left("HISTORY"), Right("WORLD"), Right("SIZE"),
               Left("SAVED"), Left("FOLDER"), Left("DAMAGE")});
  for (const StepEntry& step : steps) {
    const std::string folder = fs::path(step.path).filename().string();
    if (!step.manifest.ok()) {
      table.AddRow({"-", "-", absl::StrCat(step.name.step), step.name.history_digits, "-", "-", "-", folder,
                    std::string(step.manifest.status().message())});
      continue;
    }
    const checkpoint::Manifest& manifest = *step.manifest;
    table.AddRow({absl::StrCat(manifest.save_serial), manifest.model, absl::StrCat(manifest.step),
                  step.name.history_digits, absl::StrCat(manifest.world.size), BytesCell(manifest.size_bytes()),
                  SavedAtCell(manifest.saved_at), folder, "-"});
  }
  return table.Text();
}

nlohmann::ordered_json StepsJson(const std::vector<StepEntry>& steps) {
  auto list = nlohmann::ordered_json::array();
  for (const StepEntry& step : steps) {
    if (step.manifest.ok()) {
      list.push_back(CheckpointJson(step.path, *step.manifest));
    } else {
      list.push_back({{"folder", step.path},
                      {"step", absl::StrCat(step.name.step)},
                      {"damage", std::string(step.manifest.status().message())}});
    }
  }
  return {{"checkpoints", std::move(list)}};
}

class CheckpointList final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddFolderArgument(app, folder_, "a model's folder of checkpoints, or the folder of all models' folders");
  }
  std::vector<std::string> Objects() const override { return {folder_}; }
  absl::StatusOr<int> Run(const Context& context) override {
    ASSIGN_OR_RETURN(const std::vector<StepEntry> steps, StepsBelow(folder_));
    const bool as_table = context.options().output == Output::kTable;
    context.streams().out << (as_table ? StepsText(steps) : JsonText(StepsJson(steps)));
    return kSucceeded;
  }

 private:
  std::string folder_;
};

}  // namespace

const CommandInfo kCheckpointList = {.name = "checkpoint list",
                                     .help = "list the checkpoints of a folder",
                                     .asks_daemon = false,
                                     .create = Create<CheckpointList>};

}  // namespace paramshard::ctl
