#include "server/terms/world_terms.h"

#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/world/coordinator_cluster.h"
#include "server/world/remote_cluster.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(WorldTermsTest, ADaemonThatHasOthersDoesNotJoin) {
  const WorldTerms terms{.world = "a", .save_dir = "/saves/a", .engine_library = "NCCL 2.27.3"};
  ASSERT_OK_AND_ASSIGN(const CoordinatorNode zero, MakeCoordinatorCluster({.nodes = 2, .devices = 1, .terms = terms}));
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(zero.service.get());
  const auto server = builder.BuildAndStart();
  RemoteOptions options{.coordinator_address = absl::StrCat("127.0.0.1:", port), .terms = terms};
  const auto is_refused = [&](const std::string& expected, const std::string& got) {
    EXPECT_THAT(MakeRemoteCluster(options).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr(expected), HasSubstr(got))));
    options.terms = terms;
  };
  options.terms.save_dir = "/saves/b";
  is_refused("--save-dir \"/saves/a\" as at node 0", "got \"/saves/b\"");
  options.terms.save_dir.clear();
  is_refused("--save-dir", "got none");
  options.terms.world = "b\n";
  is_refused("--world \"a\" as at node 0", "got \"b\\n\"");
  options.terms.engine_library = "NCCL 2.26.2";
  is_refused("--nccl-library \"NCCL 2.27.3\" as at node 0", "got \"NCCL 2.26.2\"");
  EXPECT_OK(MakeRemoteCluster(options).status());
  zero.cluster->Stop();
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace
}  // namespace paramshard::server
