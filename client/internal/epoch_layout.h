// What a daemon says of a model, checked: another process has sent it.
#ifndef PARAMSHARD_CLIENT_INTERNAL_EPOCH_LAYOUT_H_
#define PARAMSHARD_CLIENT_INTERNAL_EPOCH_LAYOUT_H_

#include "absl/status/statusor.h"
#include "paramshard/v1/trainer.pb.h"
#include "proto/model/layout.h"
#include "proto/model/model_spec.h"

namespace paramshard::internal {

// FAILED_PRECONDITION for a spec that this library does not understand.
absl::StatusOr<ModelSpec> ParseDaemonsSpec(const v1::ModelSpec& proto);

// The layout of an epoch. FAILED_PRECONDITION when the daemon computes another one: daemon and library are of different
// versions. INTERNAL for ranks that cannot be.
absl::StatusOr<Layout> ComputeLayout(const v1::EpochStarted& started);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_EPOCH_LAYOUT_H_
