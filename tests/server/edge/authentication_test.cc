// Every RPC asks for a token that the companion socket minted, before it looks at anything else.

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/edge/raw_call.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Returns all services of this package's protos.
std::vector<const google::protobuf::ServiceDescriptor*> AllServices() {
  std::vector<const google::protobuf::ServiceDescriptor*> services;
  for (const char* file : {"trainer", "admin", "cluster"}) {
    const auto* const descriptor = google::protobuf::DescriptorPool::generated_pool()->FindFileByName(
        absl::StrCat("paramshard/v1/", file, ".proto"));
    for (int i = 0; i < descriptor->service_count(); ++i) services.push_back(descriptor->service(i));
  }
  return services;
}

std::vector<std::string> AllMethods() {
  std::vector<std::string> methods;
  for (const auto* const service : AllServices()) {
    // Daemons among themselves: another server, which docs/operate/security.md is frank about.
    if (service->name() == "ClusterService") continue;
    for (int i = 0; i < service->method_count(); ++i) {
      methods.push_back(absl::StrCat("/", service->full_name(), "/", service->method(i)->name()));
    }
  }
  return methods;
}

// No request of ours: who parses it says so.
constexpr char kNoMessage[] = "\xff\xff\xff\xff";

class AuthenticationTest : public DaemonTestBase, public testing::WithParamInterface<std::string> {
 protected:
  absl::Status CallWith(const std::optional<std::string>& token, const std::string& request = kNoMessage) {
    return CallRaw(client_->channel(), GetParam(), request, DaemonClient::ContextWith(token).get()).status();
  }
};

INSTANTIATE_TEST_SUITE_P(Methods, AuthenticationTest, testing::ValuesIn(AllMethods()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return absl::StrReplaceAll(info.param.substr(1), {{".", "_"}, {"/", "_"}});
                         });

TEST_P(AuthenticationTest, ACallNeedsATokenOfAnOpenConnection) {
  EXPECT_THAT(CallWith(std::nullopt), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("got none")));
  EXPECT_THAT(CallWith(""), StatusIs(absl::StatusCode::kUnauthenticated));
  std::string forged = client_->token();
  forged[0] = forged[0] == 'a' ? 'b' : 'a';
  EXPECT_THAT(CallWith(forged), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("open companion connection")));
  EXPECT_THAT(CallWith(std::string(4000, 'x')), StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST_P(AuthenticationTest, WhatIsNoRequestIsInvalid) {
  EXPECT_THAT(CallWith(client_->token()), StatusIs(absl::StatusCode::kInvalidArgument,
                                                   AllOf(HasSubstr("paramshard.v1."), HasSubstr("want a message"))));
}

// More than any message may have: who reads it refuses it for its size.
TEST_P(AuthenticationTest, ACallerIsJudgedBeforeWhatItSends) {
  const std::string large((4 << 20) + 1, 'x');
  EXPECT_THAT(CallWith(std::nullopt, large), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_THAT(CallWith(client_->token(), large), Not(StatusIs(absl::StatusCode::kUnauthenticated)));
}

TEST_P(AuthenticationTest, NobodysCompressedMessagesAreTaken) {
  for (const std::optional<std::string>& token : {std::optional<std::string>(), std::make_optional(client_->token())}) {
    const auto context = DaemonClient::ContextWith(token);
    context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
    EXPECT_THAT(CallRaw(client_->channel(), GetParam(), std::string(1 << 20, 0), context.get()),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("gzip")));
  }
}

class CallersTest : public DaemonTestBase {};

TEST_F(CallersTest, AllServicesOfTheServerAreTested) {
  // ServerReflectionRequest{list_services: ""}.
  ASSERT_OK_AND_ASSIGN(const std::string listed,
                       CallRaw(client_->channel(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                               std::string("\x3a\x00", 2), DaemonClient::ContextWith(std::nullopt).get()));
  const std::vector<std::string> methods = AllMethods();
  for (const auto* const service : AllServices()) {
    const bool tested = std::any_of(methods.begin(), methods.end(), [&](const std::string& method) {
      return method.find(absl::StrCat("/", service->full_name(), "/")) == 0;
    });
    EXPECT_EQ(listed.find(service->full_name()) != std::string::npos, tested) << service->full_name();
  }
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
