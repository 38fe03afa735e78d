#include "server/cluster/cluster_messages.h"

#include "proto/durations.h"
#include "proto/status.h"

namespace paramshard::server {

v1::JoinRequest HelloMessage(int node, int device_count) {
  v1::JoinRequest request;
  v1::Hello& hello = *request.mutable_hello();
  hello.set_protocol_version(kClusterProtocolVersion);
  hello.set_node(node);
  hello.set_device_count(device_count);
  return request;
}

v1::JoinRequest ReportMessage(const ModelReport& report) {
  v1::JoinRequest request;
  v1::ModelReport& message = *request.mutable_report();
  message.set_model(report.model);
  message.set_spec_fingerprint(report.spec_fingerprint);
  message.set_commit_number(report.commit_number);
  message.set_version(report.version);
  message.set_shard_size(report.shard_size);
  message.set_history_id(report.history_id);
  message.set_lineage(report.lineage);
  message.set_untouched(report.untouched);
  message.set_last_epoch(report.last_epoch);
  for (int rank : report.attached_ranks) message.add_attached_ranks(rank);
  return request;
}

v1::JoinRequest DepartureMessage(absl::string_view model, int64_t epoch, const absl::Status& why) {
  v1::JoinRequest request;
  v1::Departure& departure = *request.mutable_departure();
  departure.set_model(std::string(model));
  departure.set_epoch(epoch);
  *departure.mutable_why() = StatusToProto(why);
  return request;
}

v1::JoinRequest DeletionMessage(absl::string_view model) {
  v1::JoinRequest request;
  request.mutable_deletion()->set_model(std::string(model));
  return request;
}

v1::JoinRequest CommandMessage(absl::string_view model, int64_t epoch, int64_t number, int rank,
                               absl::string_view command) {
  v1::JoinRequest request;
  v1::CommandReport& report = *request.mutable_command();
  report.set_model(std::string(model));
  report.set_epoch(epoch);
  report.set_number(number);
  report.set_rank(rank);
  report.set_command(std::string(command));
  return request;
}

v1::JoinRequest DetachedMessage(absl::string_view model, int64_t epoch, int rank, int64_t command_count,
                                const absl::Status& why) {
  v1::JoinRequest request;
  v1::RankDetached& detached = *request.mutable_detached();
  detached.set_model(std::string(model));
  detached.set_epoch(epoch);
  detached.set_rank(rank);
  detached.set_command_count(command_count);
  *detached.mutable_why() = StatusToProto(why);
  return request;
}

v1::JoinRequest CarriedOutMessage(absl::string_view model, int64_t epoch, int64_t command, bool more) {
  v1::JoinRequest request;
  v1::CommandsCarriedOut& done = *request.mutable_carried_out();
  done.set_model(std::string(model));
  done.set_epoch(epoch);
  done.set_command(command);
  done.set_more(more);
  return request;
}

v1::JoinResponse WelcomeMessage(const std::vector<int>& device_counts) {
  v1::JoinResponse response;
  v1::Welcome& welcome = *response.mutable_welcome();
  welcome.set_nodes(static_cast<int>(device_counts.size()));
  for (int count : device_counts) welcome.add_device_counts(count);
  return response;
}

v1::JoinResponse EpochStartMessage(const std::string& model, const EpochStart& start) {
  v1::JoinResponse response;
  v1::EpochStart& message = *response.mutable_start();
  message.set_model(model);
  message.set_epoch(start.epoch);
  message.set_lineage(start.lineage);
  message.set_history_id(start.history_id);
  return response;
}

v1::JoinResponse LastCommandMessage(const std::string& model, int64_t epoch, int64_t command) {
  v1::JoinResponse response;
  v1::LastCommand& last = *response.mutable_last_command();
  last.set_model(model);
  last.set_epoch(epoch);
  last.set_command(command);
  return response;
}

v1::JoinResponse EpochEndMessage(const std::string& model, int64_t epoch, const absl::Status& why) {
  v1::JoinResponse response;
  v1::EpochEnd& end = *response.mutable_end();
  end.set_model(model);
  end.set_epoch(epoch);
  *end.mutable_why() = StatusToProto(why);
  return response;
}

v1::JoinResponse EpochRefusalMessage(const std::string& model, const absl::Status& why) {
  v1::JoinResponse response;
  v1::EpochRefusal& refusal = *response.mutable_refusal();
  refusal.set_model(model);
  *refusal.mutable_why() = StatusToProto(why);
  return response;
}

v1::VoteRequest VoteMessage(int node, const CommitVote& vote, absl::Duration timeout) {
  v1::VoteRequest request;
  request.set_model(vote.model);
  request.set_epoch(vote.epoch);
  request.set_commit_number(vote.commit_number);
  request.set_node(node);
  for (const RankSum& sum : vote.sums) {
    v1::RankSum& message = *request.add_sums();
    message.set_rank(sum.rank);
    message.set_square_sum(sum.square_sum);
    message.set_non_finite_count(sum.non_finite_count);
  }
  *request.mutable_timeout() = DurationToProto(timeout);
  return request;
}

v1::CommitDecision DecisionMessage(const CommitDecision& decision) {
  v1::CommitDecision message;
  message.set_apply(decision.apply);
  message.set_square_sum(decision.square_sum);
  message.set_non_finite_count(decision.non_finite_count);
  return message;
}

EpochStart EpochStartOf(const v1::EpochStart& message) {
  return {.epoch = message.epoch(), .lineage = message.lineage(), .history_id = message.history_id()};
}

ModelReport ReportOf(const v1::ModelReport& message) {
  ModelReport report;
  report.model = message.model();
  report.spec_fingerprint = message.spec_fingerprint();
  report.commit_number = message.commit_number();
  report.version = message.version();
  report.shard_size = message.shard_size();
  report.history_id = message.history_id();
  report.lineage = message.lineage();
  report.untouched = message.untouched();
  report.last_epoch = message.last_epoch();
  report.attached_ranks.assign(message.attached_ranks().begin(), message.attached_ranks().end());
  return report;
}

CommitVote VoteOf(const v1::VoteRequest& message) {
  CommitVote vote;
  vote.model = message.model();
  vote.epoch = message.epoch();
  vote.commit_number = message.commit_number();
  for (const v1::RankSum& sum : message.sums()) {
    vote.sums.push_back({sum.rank(), sum.square_sum(), sum.non_finite_count()});
  }
  return vote;
}

CommitDecision DecisionOf(const v1::CommitDecision& message) {
  return {message.apply(), message.square_sum(), message.non_finite_count()};
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return status.ok() ? absl::OkStatus() : Reason(status.error_code(), status.error_message());
}

}  // namespace paramshard::server
