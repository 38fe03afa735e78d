#include "tests/client/ctl/fake_daemon.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/shared_memory/companion_packet.h"
#include "kernels/base/check.h"

namespace paramshard::ctl {
namespace {

const std::string& Token() {
  static const auto* token = new std::string(wire::kTokenBytes, 'a');
  return *token;
}

void Send(int socket, absl::Span<const uint8_t> bytes, absl::Span<const int> fds) {
  // A client that has gone is the test's affair.
  wire::SendCompanionPacket(socket, bytes, fds).IgnoreError();
}

void SendWelcome(int socket) {
  wire::CompanionWelcome welcome;
  std::copy_n(Token().data(), wire::kTokenBytes, welcome.token);
  const wire::FileDescriptor own(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  const int fd = own.get();
  Send(socket, wire::CompanionBytes(welcome), absl::MakeConstSpan(&fd, 1));
}

void SendRefusal(int socket) {
  wire::RefuseCompanion(socket, absl::PermissionDeniedError("companion: user 0 expected, got 42"));
}

}  // namespace

grpc::Status FakeAdminService::Check(const grpc::ServerContext& context) const {
  const auto found = context.client_metadata().find(wire::kTokenMetadata);
  if (found == context.client_metadata().end() || found->second != token_) {
    return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "a token expected");
  }
  return answers.error;
}

grpc::Status FakeAdminService::ListModels(grpc::ServerContext* context, const v1::ListModelsRequest*,
                                          v1::ListModelsResponse* response) {
  *response = answers.models;
  return Check(*context);
}

grpc::Status FakeAdminService::ListShards(grpc::ServerContext* context, const v1::ListShardsRequest* request,
                                          v1::ListShardsResponse* response) {
  requests.shards.push_back(*request);
  absl::string_view token = request->page_token();
  size_t page = 0;
  if (absl::ConsumePrefix(&token, "page-")) PARAMSHARD_CHECK(absl::SimpleAtoi(token, &page));
  if (page < answers.pages.size()) *response = answers.pages[page];
  return Check(*context);
}

grpc::Status FakeAdminService::DescribeParameter(grpc::ServerContext* context,
                                                 const v1::DescribeParameterRequest* request,
                                                 v1::DescribeParameterResponse* response) {
  requests.describe = *request;
  *response = answers.parameter;
  return Check(*context);
}

grpc::Status FakeAdminService::GetParameterStats(grpc::ServerContext* context,
                                                 const v1::GetParameterStatsRequest* request,
                                                 v1::GetParameterStatsResponse* response) {
  requests.stats = *request;
  *response = answers.stats;
  return Check(*context);
}

grpc::Status FakeAdminService::ListSessions(grpc::ServerContext* context, const v1::ListSessionsRequest*,
                                            v1::ListSessionsResponse* response) {
  *response = answers.sessions;
  return Check(*context);
}

grpc::Status FakeAdminService::ListReaders(grpc::ServerContext* context, const v1::ListReadersRequest*,
                                           v1::ListReadersResponse* response) {
  *response = answers.readers;
  return Check(*context);
}

grpc::Status FakeAdminService::ListMirrors(grpc::ServerContext* context, const v1::ListMirrorsRequest*,
                                           v1::ListMirrorsResponse* response) {
  *response = answers.mirrors;
  return Check(*context);
}

grpc::Status FakeAdminService::ActivateMirror(grpc::ServerContext* context, const v1::ActivateMirrorRequest* request,
                                              v1::ActivateMirrorResponse* response) {
  requests.activate = *request;
  *response = answers.activation;
  return Check(*context);
}

grpc::Status FakeAdminService::GetMemory(grpc::ServerContext* context, const v1::GetMemoryRequest*,
                                         v1::GetMemoryResponse* response) {
  *response = answers.memory;
  return Check(*context);
}

grpc::Status FakeAdminService::VerifyModel(grpc::ServerContext* context, const v1::VerifyModelRequest* request,
                                           grpc::ServerWriter<v1::VerifyModelResponse>* writer) {
  requests.verify = *request;
  for (const v1::VerifyModelResponse& response : answers.verification) writer->Write(response);
  return Check(*context);
}

grpc::Status FakeAdminService::ImportFile(grpc::ServerContext* context, const v1::ImportFileRequest* request,
                                          v1::ImportFileResponse* response) {
  requests.import_file = *request;
  *response = answers.import_file;
  return Check(*context);
}

grpc::Status FakeAdminService::SaveModel(grpc::ServerContext* context, const v1::SaveModelRequest* request,
                                         v1::SaveModelResponse* response) {
  requests.save = *request;
  *response = answers.save;
  return Check(*context);
}

grpc::Status FakeAdminService::ListSaves(grpc::ServerContext* context, const v1::ListSavesRequest* request,
                                         v1::ListSavesResponse* response) {
  requests.saves = *request;
  *response = answers.saves;
  return Check(*context);
}

grpc::Status FakeAdminService::RestoreModel(grpc::ServerContext* context, const v1::RestoreModelRequest* request,
                                            grpc::ServerWriter<v1::RestoreModelResponse>* writer) {
  requests.restore = *request;
  for (const v1::RestoreModelResponse& response : answers.restore) writer->Write(response);
  return Check(*context);
}

grpc::Status FakeAdminService::HealModel(grpc::ServerContext* context, const v1::HealModelRequest* request,
                                         v1::HealModelResponse* response) {
  requests.heal = *request;
  *response = answers.heal;
  return Check(*context);
}

grpc::Status FakeAdminService::Drain(grpc::ServerContext* context, const v1::DrainRequest*, v1::DrainResponse*) {
  ++requests.drains;
  return Check(*context);
}

grpc::Status FakeAdminService::Restart(grpc::ServerContext* context, const v1::RestartRequest* request,
                                       v1::RestartResponse*) {
  requests.restart = *request;
  answers.version.set_pid(answers.version.pid() + 1);
  return Check(*context);
}

grpc::Status FakeAdminService::GetMetrics(grpc::ServerContext* context, const v1::GetMetricsRequest*,
                                          v1::GetMetricsResponse* response) {
  *response = answers.metrics;
  return Check(*context);
}

grpc::Status FakeAdminService::SetLogLevel(grpc::ServerContext* context, const v1::SetLogLevelRequest* request,
                                           v1::SetLogLevelResponse* response) {
  requests.log_level = *request;
  *response = answers.log_level;
  return Check(*context);
}

grpc::Status FakeAdminService::GetTrace(grpc::ServerContext* context, const v1::GetTraceRequest* request,
                                        v1::GetTraceResponse* response) {
  requests.trace = *request;
  *response = answers.trace;
  return Check(*context);
}

grpc::Status FakeAdminService::GetVersion(grpc::ServerContext* context, const v1::GetVersionRequest*,
                                          v1::GetVersionResponse* response) {
  *response = answers.version;
  return Check(*context);
}

grpc::Status FakeTrainerService::DeleteModel(grpc::ServerContext* context, const v1::DeleteModelRequest* request,
                                             v1::DeleteModelResponse*) {
  admin_.requests.delete_model = *request;
  return admin_.Check(*context);
}

FakeDaemon::FakeDaemon(FakeCompanion companion) : companion_(companion), service_(Token()) {
  Listen();
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("unix:", directory_.path(), "/grpc.sock"), grpc::InsecureServerCredentials());
  builder.RegisterService(&service_);
  builder.RegisterService(&trainer_service_);
  server_ = builder.BuildAndStart();
  PARAMSHARD_CHECK(server_ != nullptr);
  thread_ = std::thread([this] { ServeCompanion(); });
}

FakeDaemon::~FakeDaemon() {
  // Wakes accept().
  shutdown(listener_.get(), SHUT_RDWR);
  thread_.join();
  StopGrpc();
}

void FakeDaemon::StopGrpc() {
  if (server_ == nullptr) return;
  server_->Shutdown();
  server_.reset();
}

void FakeDaemon::Listen() {
  listener_ = wire::FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = absl::StrCat(directory_.path(), "/handoff.sock");
  PARAMSHARD_CHECK(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  PARAMSHARD_CHECK(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  PARAMSHARD_CHECK(listen(listener_.get(), 8) == 0);
}

void FakeDaemon::ServeCompanion() {
  while (true) {
    wire::FileDescriptor client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.valid()) return;
    Meet(client.get());
    if (companion_ != FakeCompanion::kHangsUp) clients_.push_back(std::move(client));
  }
}

void FakeDaemon::Meet(int socket) {
  const auto packet = wire::ReceiveCompanionPacket(socket, absl::Seconds(10));
  if (!packet.ok()) return;
  PARAMSHARD_CHECK(wire::ParseCompanionPacket<wire::CompanionHello>(*packet, wire::CompanionKind::kHello, 1).ok());
  if (companion_ == FakeCompanion::kWelcomes) SendWelcome(socket);
  if (companion_ == FakeCompanion::kRefuses) SendRefusal(socket);
}

}  // namespace paramshard::ctl
