// Which checkpoints stay, and how those that do not are deleted.
#ifndef PARAMSHARD_SERVER_SAVES_RETENTION_H_
#define PARAMSHARD_SERVER_SAVES_RETENTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/checkpoint/step_folder.h"
#include "server/base/disk.h"

namespace paramshard::server {

struct RetentionPolicy {
  int newest = 3;  // those with the largest save serials; at least 1
  int64_t every =
      0;  // and those whose step is a multiple of this; 0: none besides. And the newest with the highest step
};

// Those of `steps` (ListSteps: damaged ones first, then by save serial) that the policy does not keep, the oldest
// first. Damaged ones are neither counted nor deleted: nobody knows which they are.
std::vector<checkpoint::StepEntry> ExpiredSteps(absl::Span<const checkpoint::StepEntry> steps,
                                                const RetentionPolicy& policy);

struct Deletion {
  int deleted = 0;
  // The first thing that failed. What is left of a checkpoint has the name of one in the making, which nobody reads
  // and the next cleaning removes.
  absl::Status status = absl::OkStatus();
  // Renames of which nobody knows whether they are on the disk: until a later sync of the folder has succeeded nothing
  // may be deleted.
  bool in_doubt = false;
};

// Deletes checkpoints of a model's folder. Each is first renamed to the name that it had while it was made, and the
// renames are synced before the first file goes: whenever a deletion ends half done, what has a checkpoint's name is
// whole. One step after the other fails for itself.
Deletion DeleteSteps(const Disk& disk, const std::string& model_folder, absl::Span<const checkpoint::StepEntry> steps);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SAVES_RETENTION_H_
