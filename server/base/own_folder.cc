#include "server/base/own_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace paramshard::server {
namespace {

// Those who are neither owner nor root.
constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

}  // namespace

absl::Status CheckOwnFolder(const Disk& disk, const std::string& folder) {
  if (!std::filesystem::path(folder).is_absolute()) {
    return absl::InvalidArgumentError(absl::StrCat("an absolute path of a folder expected, got \"", folder, "\""));
  }
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

}  // namespace paramshard::server
