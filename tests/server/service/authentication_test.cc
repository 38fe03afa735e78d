// Every RPC asks for a token that the companion socket minted.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/service/daemon_client.h"
#include "tests/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

// One RPC, with an empty request.
struct Rpc {
  const char* name;
  std::function<grpc::Status(DaemonClient&, grpc::ClientContext*)> call;
};

template <typename Request, typename Response, typename Service>
Rpc Unary(const char* name, grpc::Status (Service::*method)(grpc::ClientContext*, const Request&, Response*)) {
  return {name, [method](DaemonClient& client, grpc::ClientContext* context) {
            Response response;
            if constexpr (std::is_same_v<Service, v1::TrainerService::Stub>) {
              return (client.trainer().*method)(context, Request(), &response);
            } else {
              return (client.admin().*method)(context, Request(), &response);
            }
          }};
}

template <typename Reader, typename Response>
grpc::Status ReadAll(Reader reader, Response response) {
  while (reader->Read(&response)) {
  }
  return reader->Finish();
}

std::vector<Rpc> AllRpcs() {
  using Trainer = v1::TrainerService::Stub;
  using Admin = v1::AdminService::Stub;
  return {
      Unary("GetCapabilities", &Trainer::GetCapabilities),
      Unary("CreateModel", &Trainer::CreateModel),
      Unary("GetModel", &Trainer::GetModel),
      Unary("DeleteModel", &Trainer::DeleteModel),
      Unary("GetLayout", &Trainer::GetLayout),
      {"Session",
       [](DaemonClient& client, grpc::ClientContext* context) {
         auto stream = client.trainer().Session(context);
         stream->WritesDone();
         return ReadAll(std::move(stream), v1::SessionResponse());
       }},
      {"Import",
       [](DaemonClient& client, grpc::ClientContext* context) {
         v1::ImportResponse response;
         const auto writer = client.trainer().Import(context, &response);
         writer->WritesDone();
         return writer->Finish();
       }},
      {"Export",
       [](DaemonClient& client, grpc::ClientContext* context) {
         return ReadAll(client.trainer().Export(context, {}), v1::ExportResponse());
       }},
      Unary("ListModels", &Admin::ListModels),
      Unary("ListShards", &Admin::ListShards),
      Unary("DescribeParameter", &Admin::DescribeParameter),
      Unary("ListSessions", &Admin::ListSessions),
      Unary("GetMemory", &Admin::GetMemory),
      {"VerifyModel",
       [](DaemonClient& client, grpc::ClientContext* context) {
         return ReadAll(client.admin().VerifyModel(context, {}), v1::VerifyModelResponse());
       }},
      Unary("ImportFile", &Admin::ImportFile),
      Unary("Drain", &Admin::Drain),
      Unary("GetVersion", &Admin::GetVersion),
  };
}

class AuthenticationTest : public DaemonTestBase, public testing::WithParamInterface<Rpc> {
 protected:
  absl::Status CallWith(const std::optional<std::string>& token) {
    return FromGrpc(GetParam().call(*client_, DaemonClient::ContextWith(token).get()));
  }
};

INSTANTIATE_TEST_SUITE_P(Rpcs, AuthenticationTest, testing::ValuesIn(AllRpcs()),
                         [](const testing::TestParamInfo<Rpc>& info) { return std::string(info.param.name); });

TEST_P(AuthenticationTest, ACallNeedsATokenOfAnOpenConnection) {
  EXPECT_THAT(CallWith(std::nullopt), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("got none")));
  EXPECT_THAT(CallWith(""), StatusIs(absl::StatusCode::kUnauthenticated));
  std::string forged = client_->token();
  forged[0] = forged[0] == 'a' ? 'b' : 'a';
  EXPECT_THAT(CallWith(forged), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("open companion connection")));
  EXPECT_THAT(CallWith(std::string(4000, 'x')), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_THAT(CallWith(client_->token()), testing::Not(StatusIs(absl::StatusCode::kUnauthenticated)));
}

class TokenTest : public DaemonTestBase {};

// How soon the daemon notices is the kernel's and its own affair.
TEST_F(TokenTest, DiesWithItsConnection) {
  client_->CloseCompanion();
  absl::Status status;
  for (const absl::Time end = absl::Now() + absl::Seconds(30); status.ok() && absl::Now() < end;) {
    status = client_->Call(client_->admin(), &v1::AdminService::Stub::GetVersion, v1::GetVersionRequest()).status();
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnauthenticated));
}

}  // namespace
}  // namespace paramshard::server
