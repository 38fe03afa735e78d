// One daemon's side of a save: the files that it writes into the staging folder of a checkpoint.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_SAVE_FOLDER_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_SAVE_FOLDER_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/base/disk.h"
#include "server/checkpoints/state_image.h"

namespace paramshard::server {

// Identity of a save. Node 0 sends it to all daemons.
struct SaveIdentity {
  int64_t step = 0;  // the commit number
  absl::uint128 history = 0;
  absl::uint128 save_id = 0;  // drawn for every save

  friend bool operator==(const SaveIdentity&, const SaveIdentity&) = default;
};

// Report of a daemon to node 0 when all its files are on the disk.
struct PartReport {
  int node = 0;
  absl::uint128 hash = 0;  // of its part-NODE.json: so node 0 reads this one, and no older one
};

// ROOT/MODEL/step-N-HISTORY.tmp-SAVEID, which the Publisher has made: every daemon finds it by the same path. Writes
// fail with NOT_FOUND once node 0 has given up the save. Constant; threads may write several ranks at once.
//
//   const SaveFolder folder(disk, ModelFolder(root, spec.name), identity);
//   for (const auto& image : images) RETURN_IF_ERROR(folder.WriteRank(*image, go_on));   // on threads of their own
//   ASSIGN_OR_RETURN(const PartReport report, folder.Finish(node, images));
class SaveFolder {
 public:
  SaveFolder(const Disk& disk, const std::string& model_folder, const SaveIdentity& identity);

  const std::string& path() const { return path_; }

  // Writes the files of a filled image and syncs them. `go_on` is called before every 64 MiB and every sync, with the
  // bytes that this call has written; its error ends the writing and is returned. The files stay: node 0 removes the
  // folder.
  using GoOn = absl::FunctionRef<absl::Status(int64_t written_bytes)>;
  absl::Status WriteRank(const StateImage& image, GoOn go_on) const;

  // Writes part-NODE.json after all ranks of the daemon are written, and syncs it and the folder.
  absl::StatusOr<PartReport> Finish(int node, absl::Span<const StateImage* const> images) const;

 private:
  std::string PathOf(const std::string& name) const;

  Disk disk_;
  std::string path_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_SAVE_FOLDER_H_
