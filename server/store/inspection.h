// Looking at a model's state: hashes, errors of planes against masters, ranges and norms.
#ifndef PARAMSHARD_SERVER_STORE_INSPECTION_H_
#define PARAMSHARD_SERVER_STORE_INSPECTION_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "paramshard/v1/admin.pb.h"
#include "server/store/model.h"

namespace paramshard::server {

v1::ModelSummary Summarize(const Model& model);

// Shards from the `skip`th on, at most `limit`, in (parameter, rank) order.
std::vector<v1::Shard> ListShards(const Model& model, int64_t skip, int64_t limit);

// Of one state. NOT_FOUND for an unknown parameter; ABORTED when commits or an import kept changing the state; errors of
// Model::Look.
absl::StatusOr<v1::DescribeParameterResponse> DescribeParameter(const Model& model, absl::string_view parameter);

// The parameters of which this daemon owns rows, at most `limit`: those whose planes are farthest from their masters
// come first. CANCELLED when `is_cancelled`, which is asked before every extent, says so.
absl::StatusOr<v1::GetParameterStatsResponse> ListParameterStats(const Model& model, int64_t limit,
                                                                 absl::FunctionRef<bool()> is_cancelled);

// Calls `sink` for every extent in (parameter, rank) order; stops when it fails. ABORTED when a commit is applied
// or an import begins meanwhile; errors of Model::Look.
absl::StatusOr<v1::VerifySummary> VerifyModel(const Model& model,
                                              absl::FunctionRef<absl::Status(const v1::ExtentVerification&)> sink);

// In the order of ranks.
std::vector<v1::BrokenDevice> ListBrokenDevices(const World& world);

// Bytes of one model by device and class.
std::vector<v1::MemoryUse> CountMemory(const Model& model);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STORE_INSPECTION_H_
