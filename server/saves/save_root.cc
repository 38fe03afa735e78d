#include "server/saves/save_root.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "proto/checkpoint/step_folder.h"

namespace paramshard::server {
namespace {

// Those who are neither owner nor root.
constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

}  // namespace

absl::Status CheckOwnFolder(const Disk& disk, const std::string& folder) {
  const absl::StatusOr<Disk::Entry> entry = disk.Look(folder);
  if (absl::IsNotFound(entry.status())) {
    return absl::FailedPreconditionError(absl::StrCat(folder, ": a folder expected, got none: make it"));
  }
  if (!entry.ok()) return entry.status();
  if (!entry->is_folder) return absl::InvalidArgumentError(absl::StrCat(folder, ": a folder expected"));
  if (entry->owner != geteuid() && entry->owner != 0) {
    return absl::PermissionDeniedError(absl::StrCat(folder, ": user ", geteuid(),
                                                    " or root as the owner expected, got user ", entry->owner,
                                                    ": change the owner (chown)"));
  }
  if ((entry->mode & kOthersWrite) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(folder,
                     ": expected to be written to by its owner alone, got a mode that lets others: "
                     "take that right away (chmod go-w)"));
  }
  return disk.CheckWritable(folder);
}

absl::Status CheckSaveRoot(const Disk& disk, const std::string& root) {
  if (std::filesystem::path(root).is_absolute()) return CheckOwnFolder(disk, root);
  return absl::InvalidArgumentError(
      absl::StrCat("folder of checkpoints: an absolute path expected, got \"", root, "\""));
}

std::string ModelFolder(const std::string& root, absl::string_view model) {
  return (std::filesystem::path(root) / checkpoint::ModelFolderName(model)).string();
}

}  // namespace paramshard::server
