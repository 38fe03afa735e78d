#include "server/base/own_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace paramshard::server {
namespace {

// Write permission of users other than the owner.
constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

}  // namespace

absl::Status CheckOwnFolder(const Disk& disk, const std::string& folder) {
  if (!std::filesystem::path(folder).is_absolute()) {
    return absl::InvalidArgumentError(absl::StrCat("want an absolute path of a folder, got \"", folder, "\""));
  }
  const absl::StatusOr<Disk::Entry> entry = disk.Look(folder);
  if (absl::IsNotFound(entry.status())) {
    return absl::FailedPreconditionError(absl::StrCat(folder, ": folder not found: create it"));
  }
  if (!entry.ok()) return entry.status();
  if (!entry->is_folder) return absl::InvalidArgumentError(absl::StrCat(folder, ": not a folder"));
  if (entry->owner != geteuid() && entry->owner != 0) {
    return absl::PermissionDeniedError(absl::StrCat(folder, ": want user ", geteuid(),
                                                    " or root as the owner, got user ", entry->owner,
                                                    ": change the owner (chown)"));
  }
  if ((entry->mode & kOthersWrite) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(folder,
                                                    ": users other than the owner may write to it: "
                                                    "remove that permission (chmod go-w)"));
  }
  return disk.CheckWritable(folder);
}

}  // namespace paramshard::server
