// Checks of a model's spec and layout as the daemon sends them.
#ifndef PARAMSHARD_CLIENT_INTERNAL_EPOCH_LAYOUT_H_
#define PARAMSHARD_CLIENT_INTERNAL_EPOCH_LAYOUT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::internal {

// FAILED_PRECONDITION for a spec that this library does not understand.
absl::StatusOr<ModelSpec> ParseDaemonsSpec(const v1::ModelSpec& proto);

// Returns the layout of a shard group of that size. FAILED_PRECONDITION when the daemon computes a different one: daemon
// and library are of different versions. INTERNAL for an impossible size.
absl::StatusOr<Layout> ComputeLayout(const v1::ModelSpec& spec, int shard_size, uint64_t fingerprint);
// The same of an epoch. INTERNAL also for a rank that is not in the group.
absl::StatusOr<Layout> ComputeLayout(const v1::EpochStarted& started);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_EPOCH_LAYOUT_H_
