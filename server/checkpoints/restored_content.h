// Comparison of the shards after a restore with what was saved.
//
// Hashes add up: every daemon hashes the rows of its ranks, and one daemon compares the sums of all with the manifest.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_RESTORED_CONTENT_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_RESTORED_CONTENT_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/tensor_key.h"
#include "common/model/model_spec.h"
#include "server/checkpoints/restore_plan.h"
#include "server/state/shard.h"

namespace paramshard::server {

// Adds the content hashes of some arrays of a part of an extent, as its shard's memory holds them now. Takes the lock
// of the shard as a reader. Errors of the device.
absl::Status AddContent(const Shard& shard, const ShardExtent& extent, const ExtentPart& part,
                        absl::Span<const checkpoint::ArrayKind> kinds, checkpoint::ContentHashes& tensors);

// Compares the sums over all ranks of the world with the hashes of a manifest, as far as the plan keeps them. Each row
// counts once per replica. DATA_LOSS naming the first tensor that has other bytes, or another number of rows.
absl::Status CheckContent(const ModelSpec& model, const RestorePlan& plan, const checkpoint::ContentHashes& saved,
                          const checkpoint::ContentHashes& restored, int replicas);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_RESTORED_CONTENT_H_
