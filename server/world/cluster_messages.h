// Messages of the wire, and the values that they carry.
#ifndef PARAMSHARD_SERVER_WORLD_CLUSTER_MESSAGES_H_
#define PARAMSHARD_SERVER_WORLD_CLUSTER_MESSAGES_H_

#include <cstdint>
#include <optional>

#include <grpcpp/support/status.h>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "paramshard/v1/cluster.pb.h"
#include "server/terms/cluster.h"
#include "server/terms/node_messages.h"
#include "server/terms/world_terms.h"

namespace paramshard::server {

inline constexpr int kClusterProtocolVersion = 12;

// A message of the stream and the value that it carries. Nothing for messages of the stream itself (hello, a node's
// moved, a probe's answer), for those that are unknown or empty, and for values that no daemon sends.
v1::JoinRequest ToProto(const FromNode& message);
std::optional<FromNode> FromProto(const v1::JoinRequest& message);
v1::JoinResponse ToProto(const ToNode& message);
std::optional<ToNode> FromProto(const v1::JoinResponse& message);

// `resumes`: the connection continues the one before it.
v1::JoinRequest HelloMessage(int node, int nodes, int device_count, const WorldTerms& terms,
                             const std::string& address = "");
void SetConnection(v1::JoinRequest& hello, absl::uint128 incarnation, int64_t connection, bool resumes);
absl::uint128 IncarnationOf(const v1::Hello& hello);
v1::JoinRequest NodeMovedMessage(int64_t connection);
v1::JoinRequest ProbeAnswerMessage();

v1::VoteRequest VoteMessage(int node, const CommitVote& vote, absl::Duration timeout);
CommitVote VoteOf(const v1::VoteRequest& message);
v1::QueryCommitRequest QueryMessage(int node, const CommitQuery& query);
CommitQuery QueryOf(const v1::QueryCommitRequest& message);
v1::CommitDecision DecisionMessage(const CommitDecision& decision);
CommitDecision DecisionOf(const v1::CommitDecision& message);

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_CLUSTER_MESSAGES_H_
