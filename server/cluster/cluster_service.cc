#include "server/cluster/cluster_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/durations.h"
#include "server/cluster/cluster_messages.h"
#include "server/cluster/stream_writer.h"

namespace paramshard::server {
namespace {

using JoinStream = grpc::ServerReaderWriter<v1::JoinResponse, v1::JoinRequest>;

// A handler holds a thread: callers that wait longer repeat the call.
constexpr absl::Duration kMaxWait = absl::Minutes(1);

absl::Duration WaitOf(const google::protobuf::Duration& timeout) {
  return std::min(DurationFromProto(timeout), kMaxWait);
}

// What the coordinator tells one node, onto its stream.
class NodeStream final : public NodeSink {
 public:
  NodeStream(grpc::ServerContext* context, JoinStream* stream) : context_(context), writer_(stream) {}

  void OnWorld(const std::vector<int>& device_counts) override { writer_.Write(WelcomeMessage(device_counts)); }
  void OnEpochStart(const std::string& model, int64_t epoch) override {
    writer_.Write(EpochStartMessage(model, epoch));
  }
  void OnEpochEnd(const std::string& model, int64_t epoch, const absl::Status& why) override {
    writer_.Write(EpochEndMessage(model, epoch, why));
  }
  void OnStop() override { context_->TryCancel(); }

 private:
  grpc::ServerContext* const context_;
  StreamWriter<JoinStream, v1::JoinResponse> writer_;
};

}  // namespace

absl::Status ClusterServiceImpl::CheckHello(const v1::JoinRequest& request) const {
  if (!request.has_hello()) return absl::InvalidArgumentError("join: hello expected as the first request");
  const v1::Hello& hello = request.hello();
  if (hello.protocol_version() != kClusterProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("join node ", hello.node(), ": protocol version ",
                                                      kClusterProtocolVersion, " expected, got ",
                                                      hello.protocol_version(), "; run one version on all nodes"));
  }
  return absl::OkStatus();
}

grpc::Status ClusterServiceImpl::Join(grpc::ServerContext* context, JoinStream* stream) {
  v1::JoinRequest request;
  if (!stream->Read(&request)) return grpc::Status(grpc::StatusCode::CANCELLED, "join: the stream ended");
  if (absl::Status status = CheckHello(request); !status.ok()) return ToGrpcStatus(status);
  const int node = request.hello().node();
  NodeStream sink(context, stream);
  const absl::Status joined = coordinator_->Join(node, request.hello().device_count(), &sink);
  if (!joined.ok()) return ToGrpcStatus(joined);
  while (stream->Read(&request)) Take(node, request);
  coordinator_->Leave(node);
  // A write in progress would wait for a node that has stopped reading.
  context->TryCancel();
  return grpc::Status::OK;
}

void ClusterServiceImpl::Take(int node, const v1::JoinRequest& request) {
  switch (request.message_case()) {
    case v1::JoinRequest::kReport:
      coordinator_->Report(node, ReportOf(request.report()));
      break;
    case v1::JoinRequest::kDeparture: {
      const v1::Departure& departure = request.departure();
      if (departure.epoch() == 0) {
        coordinator_->Forget(node, departure.model());
      } else {
        coordinator_->EndEpoch(departure.model(), departure.epoch(), ReasonOf(departure.code(), departure.message()));
      }
      break;
    }
    case v1::JoinRequest::kCommand: {
      const v1::CommandReport& command = request.command();
      coordinator_->ReportCommand(node, command.model(), command.epoch(), command.number(), command.rank(),
                                  command.command());
      break;
    }
    case v1::JoinRequest::kHello:
    case v1::JoinRequest::MESSAGE_NOT_SET:
      break;
  }
}

grpc::Status ClusterServiceImpl::Vote(grpc::ServerContext*, const v1::VoteRequest* request,
                                      v1::VoteResponse* response) {
  // Node 0 votes in its own process.
  if (request->node() < 1 || request->node() >= coordinator_->nodes()) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                        absl::StrCat("vote ", request->model(), ": a node in 1..", coordinator_->nodes() - 1,
                                     " expected, got ", request->node()));
  }
  const absl::StatusOr<CommitDecision> decision =
      coordinator_->Vote(request->node(), VoteOf(*request), absl::Now() + WaitOf(request->timeout()));
  if (!decision.ok()) return ToGrpcStatus(decision.status());
  response->set_apply(decision->apply);
  response->set_square_sum(decision->square_sum);
  response->set_non_finite_count(decision->non_finite_count);
  return grpc::Status::OK;
}

grpc::Status ClusterServiceImpl::PutValue(grpc::ServerContext*, const v1::PutValueRequest* request,
                                          v1::PutValueResponse*) {
  return ToGrpcStatus(coordinator_->Put(request->model(), request->epoch(), request->key(), request->value()));
}

grpc::Status ClusterServiceImpl::GetValue(grpc::ServerContext*, const v1::GetValueRequest* request,
                                          v1::GetValueResponse* response) {
  absl::StatusOr<std::string> value =
      coordinator_->Get(request->model(), request->epoch(), request->key(), WaitOf(request->timeout()));
  if (!value.ok()) return ToGrpcStatus(value.status());
  *response->mutable_value() = *std::move(value);
  return grpc::Status::OK;
}

}  // namespace paramshard::server
