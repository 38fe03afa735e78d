// One daemon's side of a save: the files that it writes into the staging directory of a checkpoint.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_STAGING_DIRECTORY_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_STAGING_DIRECTORY_H_

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
//   const StagingDirectory staging(disk, ModelFolder(root, spec.name), identity);
//   for (const auto& image : images) RETURN_IF_ERROR(staging.WriteRank(*image, progress));   // on threads of their own
//   ASSIGN_OR_RETURN(const PartReport report, staging.Finish(node, images));
class StagingDirectory {
 public:
  StagingDirectory(const Disk& disk, const std::string& model_folder, const SaveIdentity& identity);

  const std::string& path() const { return path_; }

  // Writes the files of a filled image and syncs them. `progress` is called before every 64 MiB and every sync, with
  // the bytes that this call has written; its error ends the writing and is returned. The files stay: node 0 removes
  // the directory.
  using Progress = absl::FunctionRef<absl::Status(int64_t written_bytes)>;
  absl::Status WriteRank(const StateImage& image, Progress progress) const;

  // Writes part-NODE.json after all ranks of the daemon are written, and syncs it and the directory.
  absl::StatusOr<PartReport> Finish(int node, absl::Span<const StateImage* const> images) const;

 private:
  std::string PathOf(const std::string& name) const;

  Disk disk_;
  std::string path_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_STAGING_DIRECTORY_H_
