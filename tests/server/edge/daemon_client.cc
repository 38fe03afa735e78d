#include "tests/server/edge/daemon_client.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/shared_memory/companion_packet.h"
#include "kernels/base/check.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

CompanionClient ConnectCompanion(const std::string& socket_dir) {
  absl::StatusOr<CompanionClient> companion = CompanionClient::Connect(socket_dir + "/handoff.sock");
  PARAMSHARD_CHECK(companion.ok());
  return *std::move(companion);
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

DaemonClient::DaemonClient(const std::string& socket_dir) : companion_(ConnectCompanion(socket_dir)) {
  absl::StatusOr<std::string> token = companion_.SayHello();
  PARAMSHARD_CHECK(token.ok());
  token_ = *std::move(token);
  grpc::ChannelArguments arguments;
  // One connection for each client, as processes have.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  channel_ = grpc::CreateCustomChannel(absl::StrCat("unix:", socket_dir, "/grpc.sock"),
                                       grpc::InsecureChannelCredentials(), arguments);
  trainer_ = v1::TrainerService::NewStub(channel_);
  admin_ = v1::AdminService::NewStub(channel_);
}

std::unique_ptr<grpc::ClientContext> DaemonClient::Context() const { return ContextWith(token_); }

std::unique_ptr<grpc::ClientContext> DaemonClient::ContextWith(const std::optional<std::string>& token) {
  auto context = std::make_unique<grpc::ClientContext>();
  if (token.has_value()) context->AddMetadata(wire::kTokenMetadata, *token);
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  return context;
}

absl::StatusOr<v1::CreateModelResponse> DaemonClient::CreateModel(const v1::ModelSpec& spec) {
  v1::CreateModelRequest request;
  *request.mutable_spec() = spec;
  return Call(trainer(), &v1::TrainerService::Stub::CreateModel, request);
}

std::string DaemonClient::StateHash(const std::string& model) {
  const auto context = Context();
  v1::VerifyModelRequest request;
  request.set_model(model);
  const auto reader = admin().VerifyModel(context.get(), request);
  v1::VerifyModelResponse response;
  while (reader->Read(&response)) {
    EXPECT_TRUE(!response.has_extent() || response.extent().planes_match());
  }
  EXPECT_OK(FromGrpc(reader->Finish()));
  return response.summary().state_hash();
}

void DaemonTestBase::StartDaemon(const std::function<void(DaemonConfig&)>& change) {
  client_.reset();
  daemon_.reset();
  DaemonConfig config = Config();
  change(config);
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config);
  PARAMSHARD_CHECK(daemon.ok());
  daemon_ = *std::move(daemon);
  client_ = std::make_unique<DaemonClient>(socket_dir());
}

DaemonConfig DaemonTestBase::Config() const {
  DaemonConfig config;
  config.devices = {"cpu:0", "cpu:1"};
  config.socket_dir = socket_dir();
  return config;
}

}  // namespace paramshard::server
