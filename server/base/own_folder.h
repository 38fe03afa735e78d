// Check of a folder whose files the daemon trusts.
#ifndef PARAMSHARD_SERVER_BASE_OWN_FOLDER_H_
#define PARAMSHARD_SERVER_BASE_OWN_FOLDER_H_

#include <string>

#include "absl/status/status.h"
#include "server/base/disk.h"

namespace paramshard::server {

// Returns OK if the path is absolute and leads to a folder that belongs to this process's user or to root, that no
// other user may write to, and that this process may. Another writer could remove files in use, or plant state that
// the daemon would trust. INVALID_ARGUMENT a path that is not absolute or is no folder; FAILED_PRECONDITION the folder
// does not exist; PERMISSION_DENIED a wrong owner or mode, or no right to write.
absl::Status CheckOwnFolder(const Disk& disk, const std::string& folder);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_OWN_FOLDER_H_
