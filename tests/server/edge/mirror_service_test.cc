#include "server/edge/mirror_service.h"

#include <string>
#include <vector>

#include "common/rpc/durations.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "paramshard/v1/mirror.grpc.pb.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

v1::ModelSpec MirroredSpec() { return MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {8, 4})})}); }

class MirrorServiceTest : public DaemonTestBase {
 protected:
  absl::StatusOr<v1::AskVersionsResponse> Ask(const v1::AskVersionsRequest& request = {}) {
    return client_->Call(*v1::MirrorService::NewStub(client_->channel()), &v1::MirrorService::Stub::AskVersions,
                         request);
  }
  absl::StatusOr<v1::DescribeModelResponse> Describe(const std::string& model) {
    v1::DescribeModelRequest request;
    request.set_model(model);
    return client_->Call(*v1::MirrorService::NewStub(client_->channel()), &v1::MirrorService::Stub::DescribeModel,
                         request);
  }
};

TEST_F(MirrorServiceTest, AMirrorIsToldVersionsAndOwners) {
  EXPECT_EQ(Ask()->models_size(), 0);
  EXPECT_THAT(Describe("m"), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK(client_->CreateModel(MirroredSpec()));
  ASSERT_OK_AND_ASSIGN(const v1::AskVersionsResponse asked, Ask());
  ASSERT_EQ(asked.models_size(), 1);
  EXPECT_EQ(asked.models(0).model(), "m");
  EXPECT_EQ(asked.models(0).version().commit_number(), 0);
  EXPECT_EQ(asked.models(0).version().history_id().size(), 32);
  ASSERT_OK_AND_ASSIGN(const v1::DescribeModelResponse described, Describe("m"));
  EXPECT_EQ(described.spec().name(), "m");
  EXPECT_EQ(described.layout_fingerprint(), asked.models(0).layout_fingerprint());
  EXPECT_EQ(described.spec_fingerprint(), asked.models(0).spec_fingerprint());
  ASSERT_EQ(described.owners_size(), 1);
  EXPECT_EQ(described.owners(0).address(), "");
  EXPECT_EQ(described.owners(0).ranks(), 2);
}

TEST_F(MirrorServiceTest, ReportsAreBounded) {
  v1::AskVersionsRequest request;
  request.add_reports()->set_last_error(std::string(5000, 'x'));
  EXPECT_THAT(Ask(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want reports of at most 4096")));
  request.clear_reports();
  for (int i = 0; i < 1025; ++i) request.add_reports()->set_mirror("r");
  EXPECT_THAT(Ask(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want at most 1024 reports")));
}

TEST_F(MirrorServiceTest, MirrorsCanBeTurnedOff) {
  StartDaemon([](DaemonConfig& config) { config.mirror_image_memory = 0; });
  EXPECT_THAT(Ask(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--mirror-image-memory is 0")));
}

}  // namespace
}  // namespace paramshard::server
