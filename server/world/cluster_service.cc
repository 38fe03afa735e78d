#include "server/world/cluster_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/durations.h"
#include "common/rpc/status.h"
#include "common/tls/credentials.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"
#include "server/base/version.h"
#include "server/observe/log.h"
#include "server/world/cluster_messages.h"
#include "server/world/stream_writer.h"
#include "server/world/waiting_call.h"

namespace paramshard::server {
namespace {

using JoinStream = grpc::ServerReaderWriter<v1::JoinResponse, v1::JoinRequest>;

// Longest wait of one call. Callers that wait longer repeat the call.
constexpr absl::Duration kMaxWait = absl::Minutes(1);

absl::Duration WaitOf(const google::protobuf::Duration& timeout) {
  return std::min(DurationFromProto(timeout), kMaxWait);
}

// Quotes a text of the node, which may have any length.
std::string Quoted(absl::string_view word) {
  constexpr size_t kMostBytes = 4096;
  return word.empty() ? "none" : absl::StrCat("\"", absl::CEscape(word.substr(0, kMostBytes)), "\"");
}

// FAILED_PRECONDITION a setting that all daemons share differs.
absl::Status CheckTerm(int node, absl::string_view what, absl::string_view expected, absl::string_view got,
                       absl::string_view advice) {
  if (expected == got) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("join node ", node, ": want ", what, " ", Quoted(expected),
                                                    " as at node 0, got ", Quoted(got), "; ", advice));
}

std::string BuildText(absl::string_view build) {
  constexpr size_t kMostBytes = 64;
  return build.empty() ? "an older one" : absl::CEscape(build.substr(0, kMostBytes));
}

// Writes the coordinator's messages for one node to its stream.
class NodeStream final : public NodeSink {
 public:
  using Writer = StreamWriter<JoinStream, v1::JoinResponse>;

  NodeStream(grpc::ServerContext* context, std::unique_ptr<Writer> writer)
      : context_(context), writer_(std::move(writer)) {}

  void Tell(const ToNode& message) override { writer_->Write(ToProto(message)); }
  void OnStop() override { context_->TryCancel(); }

 private:
  grpc::ServerContext* const context_;
  const std::unique_ptr<Writer> writer_;
};

grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext& context, const absl::Status& why) {
  grpc::ServerUnaryReactor* const refusal = context.DefaultReactor();
  refusal->Finish(ToGrpcStatus(why));
  return refusal;
}

}  // namespace

absl::Status ClusterServiceImpl::CheckHello(const grpc::ServerContext& context, const v1::JoinRequest& request) const {
  if (!request.has_hello()) return absl::InvalidArgumentError("join: the first request is not a hello");
  const v1::Hello& hello = request.hello();
  if (hello.protocol_version() != kClusterProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("join node ", hello.node(), ": want protocol version ",
                                                      kClusterProtocolVersion, ", got ", hello.protocol_version(),
                                                      "; run one version on all nodes"));
  }
  if (hello.build() != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("join node ", hello.node(), ": want paramshardd ", kVersion,
                                                      " as at node 0, got ", BuildText(hello.build()),
                                                      "; run one version on all nodes"));
  }
  RETURN_IF_ERROR(check_speaker_(*context.auth_context(), hello.node()));
  if (hello.nodes() != coordinator_->nodes()) {
    return absl::FailedPreconditionError(absl::StrCat("join node ", hello.node(), ": want --nodes ",
                                                      coordinator_->nodes(), " as at node 0, got ", hello.nodes()));
  }
  const WorldTerms& terms = coordinator_->terms();
  RETURN_IF_ERROR(CheckTerm(hello.node(), "--world", terms.world, hello.world(),
                            "check that --cluster-address names this world's node 0"));
  RETURN_IF_ERROR(CheckTerm(hello.node(), "--save-dir", terms.save_dir, hello.save_dir(),
                            "give all daemons of a world the same folder"));
  return CheckTerm(hello.node(), "--nccl-library", terms.engine_library, hello.engine_library(),
                   "give all daemons of a world one version, and devices of one kind");
}

absl::Status ClusterServiceImpl::Hear(grpc::ServerContext* context, JoinStream* stream, v1::JoinRequest& request) {
  // Without certificates callers cannot be told apart.
  std::optional<UnidentifiedStreams::Place> place;
  if (const std::string caller = absl::StrJoin(tls::PeerUris(*context->auth_context()), " "); !caller.empty()) {
    ASSIGN_OR_RETURN(UnidentifiedStreams::Place taken, unidentified_.Take(caller, [context] { context->TryCancel(); }));
    place.emplace(std::move(taken));
  }
  if (stream->Read(&request)) return absl::OkStatus();
  return absl::CancelledError("join: the stream ended before hello");
}

grpc::Status ClusterServiceImpl::Join(grpc::ServerContext* context, JoinStream* stream) {
  v1::JoinRequest request;
  if (const absl::Status heard = Hear(context, stream, request); !heard.ok()) {
    if (absl::IsResourceExhausted(heard)) {
      log_.Write(LogLevel::kWarning, "node rejected",
                 {{"peer", context->peer()}, {"why", std::string(heard.message())}});
    }
    return ToGrpcStatus(heard);
  }
  const absl::Status served = Serve(context, request, stream);
  if (!served.ok()) {
    log_.Write(LogLevel::kWarning, "node rejected",
               {{"node", absl::StrCat(request.hello().node())},
                {"peer", context->peer()},
                {"why", std::string(served.message())}});
  }
  return ToGrpcStatus(served);
}

absl::Status ClusterServiceImpl::Serve(grpc::ServerContext* context, v1::JoinRequest& request, JoinStream* stream) {
  RETURN_IF_ERROR(CheckHello(*context, request));
  const v1::Hello hello = request.hello();
  ASSIGN_OR_RETURN(auto writer, NodeStream::Writer::Start(stream, [context] { context->TryCancel(); }));
  NodeStream sink(context, std::move(writer));
  const auto node_stream =
      std::make_shared<NodeStreamRegistry::Stream>(NodeStreamRegistry::Stream{.node = hello.node(),
                                                                              .incarnation = IncarnationOf(hello),
                                                                              .connection = hello.connection(),
                                                                              .peer = context->peer(),
                                                                              .sink = &sink});
  RETURN_IF_ERROR(hello.resumes() ? streams_.Resume(node_stream) : streams_.Join(node_stream, hello.device_count()));
  coordinator_->SetAddress(hello.node(), hello.address());
  if (!hello.resumes()) LogNode(LogLevel::kInfo, "node joined", *node_stream);
  bool is_moved = false;
  while (!is_moved && stream->Read(&request)) {
    is_moved = request.has_moved();
    if (request.has_probe_answer()) streams_.TakeProbeAnswer(*node_stream);
    const std::optional<FromNode> message = FromProto(request);
    if (message.has_value()) coordinator_->Step(hello.node(), *message).IgnoreError();  // a stop ends the stream
  }
  if (streams_.End(*node_stream, is_moved)) LogNode(LogLevel::kWarning, "node left", *node_stream);
  // A write in progress would wait for a node that has stopped reading.
  context->TryCancel();
  return absl::OkStatus();
}

void ClusterServiceImpl::LogNode(LogLevel level, absl::string_view event, const NodeStreamRegistry::Stream& stream) {
  const size_t nodes = coordinator_->nodes();
  log_.Write(level, event,
             {{"node", absl::StrCat(stream.node)},
              {"peer", stream.peer},
              {"present", absl::StrCat(nodes - coordinator_->ViewWorld().absent.size(), " of ", nodes)}});
}

absl::Status ClusterServiceImpl::CheckNode(const grpc::ServerContextBase& context, absl::string_view operation,
                                           absl::string_view model, int node) const {
  RETURN_IF_ERROR(check_speaker_(*context.auth_context(), node));
  if (node >= 1 && node < coordinator_->nodes()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(operation, " ", model, ": want a node in 1..", coordinator_->nodes() - 1, ", got ", node));
}

grpc::ServerUnaryReactor* ClusterServiceImpl::Vote(grpc::CallbackServerContext* context, const v1::VoteRequest* request,
                                                   v1::VoteResponse* response) {
  const SteadyTime begin = SteadyNow();
  if (absl::Status valid = CheckNode(*context, "vote", request->model(), request->node()); !valid.ok()) {
    return Refuse(*context, valid);
  }
  using Decision = absl::StatusOr<CommitDecision>;
  return WaitingCall<Decision>::Start(
      coordinator_, WaitOf(request->timeout()),
      [&](Coordinator::VoteAnswered answered) {
        return coordinator_->Vote(request->node(), VoteOf(*request), std::move(answered));
      },
      [response, begin](const Decision& decision) {
        *response->mutable_held() = DurationToProto(absl::FromChrono(SteadyNow() - begin));
        if (decision.ok()) *response->mutable_decision() = DecisionMessage(*decision);
        // DEADLINE_EXCEEDED is kept for the call itself, so that a voter can tell it from node 0's answer.
        if (absl::IsDeadlineExceeded(decision.status())) return grpc::Status::OK;
        return ToGrpcStatus(decision.status());
      });
}

grpc::Status ClusterServiceImpl::QueryCommit(grpc::ServerContext* context, const v1::QueryCommitRequest* request,
                                             v1::QueryCommitResponse* response) {
  if (absl::Status valid = CheckNode(*context, "query", request->model(), request->node()); !valid.ok()) {
    return ToGrpcStatus(valid);
  }
  const absl::StatusOr<CommitDecision> decision = coordinator_->QueryCommit(request->node(), QueryOf(*request));
  if (decision.ok()) *response->mutable_decision() = DecisionMessage(*decision);
  return ToGrpcStatus(decision.status());
}

grpc::Status ClusterServiceImpl::PutValue(grpc::ServerContext* context, const v1::PutValueRequest* request,
                                          v1::PutValueResponse*) {
  if (absl::Status valid = CheckNode(*context, "put", request->model(), request->node()); !valid.ok()) {
    return ToGrpcStatus(valid);
  }
  if (request->parts().empty()) {
    return ToGrpcStatus(
        coordinator_->Put(request->node(), request->model(), request->epoch(), request->key(), request->value()));
  }
  return ToGrpcStatus(coordinator_->PutParts(request->node(), request->model(), request->epoch(), request->key(),
                                             {request->parts().begin(), request->parts().end()}));
}

grpc::ServerUnaryReactor* ClusterServiceImpl::GetParts(const v1::GetValueRequest* request,
                                                       v1::GetValueResponse* response) {
  using Parts = absl::StatusOr<Coordinator::Parts>;
  const absl::Duration wait = WaitOf(request->timeout());
  return WaitingCall<Parts>::Start(
      coordinator_, wait,
      [&](Coordinator::PartsAnswered answered) {
        return coordinator_->GetParts(request->node(), request->model(), request->epoch(), request->key(),
                                      std::move(answered));
      },
      [this, request, response, wait](const Parts& parts) {
        if (absl::IsDeadlineExceeded(parts.status())) {
          return ToGrpcStatus(coordinator_->LatePartsError(request->model(), request->key(), wait));
        }
        if (parts.ok()) response->mutable_parts()->Assign(parts->begin(), parts->end());
        return ToGrpcStatus(parts.status());
      });
}

grpc::ServerUnaryReactor* ClusterServiceImpl::GetValue(grpc::CallbackServerContext* context,
                                                       const v1::GetValueRequest* request,
                                                       v1::GetValueResponse* response) {
  if (absl::Status valid = CheckNode(*context, "get", request->model(), request->node()); !valid.ok()) {
    return Refuse(*context, valid);
  }
  if (request->of_parts()) return GetParts(request, response);
  using Value = absl::StatusOr<std::string>;
  const absl::Duration wait = WaitOf(request->timeout());
  return WaitingCall<Value>::Start(
      coordinator_, wait,
      [&](Coordinator::ValueAnswered answered) {
        return coordinator_->Get(request->of_node(), request->model(), request->epoch(), request->key(),
                                 std::move(answered));
      },
      [request, response, wait](const Value& value) {
        if (absl::IsDeadlineExceeded(value.status())) {
          return ToGrpcStatus(Coordinator::LateValueError(request->of_node(), request->model(), request->key(), wait));
        }
        if (value.ok()) response->set_value(*value);
        return ToGrpcStatus(value.status());
      });
}

}  // namespace paramshard::server
