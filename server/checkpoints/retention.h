// Retention of checkpoints: the choice of those that stay, and the deletion of the others.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_RETENTION_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_RETENTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/checkpoint/step_folder.h"
#include "server/base/disk.h"

namespace paramshard::server {

struct RetentionPolicy {
  int newest = 3;  // checkpoints with the largest save serials; at least 1
  int64_t every =
      0;  // also checkpoints whose step is a multiple of this; 0: no further ones. The highest step always stays
};

// Returns the `steps` (ListSteps: damaged ones first, then by save serial) that the policy does not keep, the oldest
// first. Damaged ones are neither counted nor deleted: their serials are not known.
std::vector<checkpoint::StepEntry> ExpiredSteps(absl::Span<const checkpoint::StepEntry> steps,
                                                const RetentionPolicy& policy);

struct Deletion {
  int deleted = 0;
  // The first failure. The rest of a checkpoint has the name of a staging directory, which is never read and which the
  // next cleanup removes.
  absl::Status status = absl::OkStatus();
  // Renames are not known to be on the disk: nothing may be deleted until a later sync of the folder has succeeded.
  bool in_doubt = false;
};

// Deletes checkpoints of a model's folder. Each is first renamed to the name of its staging directory, and the renames
// are synced before the first file is deleted: if a deletion is cut short, every folder with a checkpoint's name is
// whole. A failure of one step does not stop the others.
Deletion DeleteSteps(const Disk& disk, const std::string& model_folder, absl::Span<const checkpoint::StepEntry> steps);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_RETENTION_H_
