// Answers of the daemon's admin service, as values of client.h.
#ifndef PARAMSHARD_CLIENT_INTERNAL_ADMIN_ANSWERS_H_
#define PARAMSHARD_CLIENT_INTERNAL_ADMIN_ANSWERS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "paramshard/v1/admin.pb.h"

namespace paramshard::internal {

// INTERNAL for a state or a reason that this library does not know.
absl::StatusOr<SaveRecord> SaveFromProto(const v1::Save& save);
absl::StatusOr<std::vector<SaveRecord>> SavesFromProto(const v1::ListSavesResponse& response);

// kUnknown for an origin that this library does not know.
ValueOrigin OriginFromProto(v1::ValueOrigin origin);
RestoreSummary RestoreFromProto(const v1::RestoreSummary& summary);
std::vector<ModelSummary> ModelsFromProto(const v1::ListModelsResponse& response);
DaemonInfo DaemonFromProto(const v1::GetVersionResponse& response);
std::vector<MemoryUse> MemoryFromProto(const v1::GetMemoryResponse& response);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_ADMIN_ANSWERS_H_
