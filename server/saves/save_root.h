// The folder that checkpoints lie in, and what is demanded of it.
#ifndef PARAMSHARD_SERVER_SAVES_SAVE_ROOT_H_
#define PARAMSHARD_SERVER_SAVES_SAVE_ROOT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/saves/disk.h"

namespace paramshard::server {

// OK for an absolute path of a folder that belongs to this process's user or to root, that nobody else may write to,
// and that this process may. Whoever else could write there could take files away in the middle of a save, or lay down
// state that a restore would believe. INVALID_ARGUMENT for a path that is not absolute or is no folder;
// FAILED_PRECONDITION where nothing is there; PERMISSION_DENIED for a wrong owner or mode, and without the right to
// write.
absl::Status CheckSaveRoot(const Disk& disk, const std::string& root);

// The same of a folder in it, which is this program's own: ROOT/MODEL.
absl::Status CheckOwnFolder(const Disk& disk, const std::string& folder);

// ROOT/MODEL (checkpoint::ModelFolderName).
std::string ModelFolder(const std::string& root, absl::string_view model);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SAVES_SAVE_ROOT_H_
