// Conversion between the domain's types and the messages of the wire.
#ifndef PARAMSHARD_SERVER_WORLD_CLUSTER_MESSAGES_H_
#define PARAMSHARD_SERVER_WORLD_CLUSTER_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/support/status.h>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "paramshard/v1/cluster.pb.h"
#include "server/terms/cluster.h"
#include "server/terms/world_terms.h"

namespace paramshard::server {

inline constexpr int kClusterProtocolVersion = 10;

v1::JoinRequest HelloMessage(int node, int nodes, int device_count, const WorldTerms& terms);
// Puts the number of the process's connection into the hello. `goes_on`: it continues the connection before it.
void SetConnection(v1::JoinRequest& hello, absl::uint128 incarnation, int64_t connection, bool goes_on);
absl::uint128 IncarnationOf(const v1::Hello& hello);
v1::JoinRequest NodeMovedMessage(int64_t connection);
v1::JoinResponse MovedMessage(int64_t connection);
v1::JoinResponse ProbeMessage();
v1::JoinRequest ProbeAnswerMessage();
v1::JoinRequest ReportMessage(const ModelReport& report);
v1::JoinRequest DepartureMessage(absl::string_view model, int64_t epoch, const absl::Status& why,
                                 const std::vector<BadLink>& links);
std::vector<BadLink> BadLinksOf(const v1::Departure& departure);
v1::JoinRequest DeletionMessage(absl::string_view model);
v1::JoinRequest CommandsMessage(absl::string_view model, int64_t epoch, const std::vector<CommandInWords>& commands);
v1::JoinRequest DetachedMessage(absl::string_view model, int64_t epoch, int rank, int64_t command_count,
                                const absl::Status& why);
v1::JoinRequest CarriedOutMessage(absl::string_view model, int64_t epoch, int64_t command, bool more);
v1::JoinRequest WorldQuestionMessage();
v1::JoinResponse WelcomeMessage(int nodes, const std::vector<int>& device_counts);
v1::JoinResponse EpochStartMessage(const std::string& model, const EpochStart& start);
v1::JoinResponse LastCommandMessage(const std::string& model, int64_t epoch, int64_t command);
v1::JoinResponse CommandsWantedMessage(const std::string& model, int64_t epoch, const CommandsThrough& unless);
v1::JoinResponse EpochEndMessage(const std::string& model, int64_t epoch, const absl::Status& why);
v1::JoinResponse EpochRefusalMessage(const std::string& model, const absl::Status& why);

// For either direction of the stream.
v1::SaveNews SaveMessage(const SaveNews& news);
// Null for a message that says nothing.
std::optional<SaveNews> SaveNewsOf(const v1::SaveNews& message);
v1::RestoreNews RestoreMessage(const RestoreNews& news);
std::optional<RestoreNews> RestoreNewsOf(const v1::RestoreNews& message);

v1::VoteRequest VoteMessage(int node, const CommitVote& vote, absl::Duration timeout);
v1::QueryCommitRequest QueryMessage(int node, const CommitQuery& query);

v1::CommitDecision DecisionMessage(const CommitDecision& decision);

CommandsThrough CommandsThroughOf(const v1::CommandsThrough& message);
std::vector<CommandInWords> CommandsOf(const v1::CommandReports& message);
EpochStart EpochStartOf(const v1::EpochStart& message);
ModelReport ReportOf(const v1::ModelReport& message);
CommitVote VoteOf(const v1::VoteRequest& message);
CommitQuery QueryOf(const v1::QueryCommitRequest& message);
CommitDecision DecisionOf(const v1::CommitDecision& message);

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_CLUSTER_MESSAGES_H_
