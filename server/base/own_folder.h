// What is demanded of a folder that the daemon believes what it reads from.
#ifndef PARAMSHARD_SERVER_BASE_OWN_FOLDER_H_
#define PARAMSHARD_SERVER_BASE_OWN_FOLDER_H_

#include <string>

#include "absl/status/status.h"
#include "server/base/disk.h"

namespace paramshard::server {

// OK for an absolute path of a folder that belongs to this process's user or to root, that nobody else may write to,
// and that this process may. Whoever else could write there could take files away while they are used, or lay down
// state that would be believed. INVALID_ARGUMENT for a path that is not absolute or is no folder; FAILED_PRECONDITION
// where nothing is there; PERMISSION_DENIED for a wrong owner or mode, and without the right to write.
absl::Status CheckOwnFolder(const Disk& disk, const std::string& folder);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_OWN_FOLDER_H_
