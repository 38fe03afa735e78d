#include "server/checkpoints/retention.h"

#include <algorithm>
#include <filesystem>

#include "kernels/base/check.h"

namespace paramshard::server {

using checkpoint::StepEntry;

std::vector<StepEntry> ExpiredSteps(absl::Span<const StepEntry> steps, const RetentionPolicy& policy) {
  PARAMSHARD_CHECK(policy.newest >= 1 && policy.every >= 0);
  std::vector<StepEntry> whole;
  for (const StepEntry& step : steps) {
    if (step.manifest.ok()) whole.push_back(step);
  }
  // Keeps the checkpoint of the highest step: a training that is started again by mistake does not delete the result
  // of the one before.
  size_t furthest = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    if (whole[i].name.step >= whole[furthest].name.step) furthest = i;
  }
  std::vector<StepEntry> expired;
  for (size_t i = 0; i + policy.newest < whole.size(); ++i) {
    const bool stays = i == furthest || (policy.every > 0 && whole[i].name.step % policy.every == 0);
    if (!stays) expired.push_back(std::move(whole[i]));
  }
  return expired;
}

Deletion DeleteSteps(const Disk& disk, const std::string& model_folder, absl::Span<const StepEntry> steps) {
  Deletion deletion;
  std::vector<std::string> aside;
  for (const StepEntry& step : steps) {
    const std::string name =
        checkpoint::TemporaryFolderName(step.manifest->step, step.manifest->history, step.manifest->save_id);
    const std::string path = (std::filesystem::path(model_folder) / name).string();
    const absl::Status status = disk.Rename(step.path, path);
    deletion.status.Update(status);
    if (status.ok()) aside.push_back(path);
  }
  if (aside.empty()) return deletion;
  if (const absl::Status status = disk.SyncFolder(model_folder); !status.ok()) {
    deletion.status.Update(status);
    deletion.in_doubt = true;
    return deletion;
  }
  for (const std::string& path : aside) {
    const absl::Status status = disk.RemoveFolder(path);
    deletion.status.Update(status);
    if (status.ok()) ++deletion.deleted;
  }
  return deletion;
}

}  // namespace paramshard::server
