#include "server/saves/retention.h"

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
  // A training that has begun anew by mistake does not take with it what the one before has come to.
  int64_t furthest = 0;
  for (const StepEntry& step : whole) furthest = std::max(furthest, step.name.step);
  whole.resize(whole.size() - std::min<size_t>(whole.size(), policy.newest));
  const auto stays = [&](const StepEntry& step) {
    return step.name.step == furthest || (policy.every > 0 && step.name.step % policy.every == 0);
  };
  whole.erase(std::remove_if(whole.begin(), whole.end(), stays), whole.end());
  return whole;
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
