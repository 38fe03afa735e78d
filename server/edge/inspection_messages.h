// Messages of AdminService for the results of an inspection.
#ifndef PARAMSHARD_SERVER_EDGE_INSPECTION_MESSAGES_H_
#define PARAMSHARD_SERVER_EDGE_INSPECTION_MESSAGES_H_

#include "absl/strings/string_view.h"
#include "paramshard/v1/admin.pb.h"
#include "server/models/inspection.h"
#include "server/state/publication.h"

namespace paramshard::server {

v1::ModelSummary ToProto(const ModelSummary& summary);
v1::Shard ToProto(const ShardListing& shard);
v1::DescribeParameterResponse ToProto(const ParameterDescription& description);
v1::GetParameterStatsResponse ToProto(const RankedStats& stats);
v1::ExtentVerification ToProto(const ExtentVerification& verification);
v1::VerifySummary ToProto(const VerifySummary& summary);
v1::BrokenDevice ToProto(const BrokenDevice& broken);
// The reader's model, or the use's.
v1::ReaderSummary ToProto(absl::string_view model, const ReaderReport& reader);
v1::MemoryUse ToProto(absl::string_view model, const MemoryUse& use);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_INSPECTION_MESSAGES_H_
