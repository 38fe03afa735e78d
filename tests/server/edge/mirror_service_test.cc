#include "server/edge/mirror_service.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/rpc/durations.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "paramshard/v1/mirror.grpc.pb.h"
#include "server/mirrors/planes_chunk.h"
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
  // Returns all messages of a transfer.
  absl::StatusOr<std::vector<v1::FetchPlanesResponse>> Fetch(const v1::PlaneVersion& version) {
    v1::FetchPlanesRequest request;
    request.set_model("m");
    *request.mutable_version() = version;
    const auto stub = v1::MirrorService::NewStub(client_->channel());
    const auto context = client_->Context();
    const auto reader = stub->FetchPlanes(context.get(), request);
    std::vector<v1::FetchPlanesResponse> messages(1);
    while (reader->Read(&messages.back())) messages.emplace_back();
    messages.pop_back();
    if (const absl::Status status = FromGrpc(reader->Finish()); !status.ok()) return status;
    return messages;
  }
  std::string Metrics() {
    return client_->Call(client_->admin(), &v1::AdminService::Stub::GetMetrics, v1::GetMetricsRequest())->text();
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

TEST_F(MirrorServiceTest, AQuestionWaitsForNews) {
  v1::AskVersionsRequest request;
  *request.mutable_wait() = DurationToProto(absl::Milliseconds(50));
  const absl::Time begin = absl::Now();
  EXPECT_EQ(Ask(request)->models_size(), 0);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(50));

  *request.mutable_wait() = DurationToProto(absl::Seconds(2));
  absl::StatusOr<v1::AskVersionsResponse> asked;
  std::thread question([&] { asked = Ask(request); });
  ASSERT_OK(client_->CreateModel(MirroredSpec()));
  question.join();
  ASSERT_OK(asked);
  ASSERT_EQ(asked->models_size(), 1);
  EXPECT_EQ(asked->models(0).model(), "m");

  const auto wait = [&] {
    const absl::Time asks = absl::Now();
    EXPECT_OK(Ask(request).status());
    return absl::Now() - asks;
  };
  *request.mutable_wait() = DurationToProto(absl::Milliseconds(50));
  v1::MirrorReport& report = *request.add_reports();
  report.set_model("m");
  *report.mutable_staged() = asked->models(0).version();
  EXPECT_GE(wait(), absl::Milliseconds(50)) << "the mirror has that version";
  *request.add_reports() = report;
  request.mutable_reports(1)->set_model("gone");
  *request.mutable_wait() = DurationToProto(absl::Seconds(2));
  EXPECT_LT(wait(), absl::Seconds(2)) << "a model is gone";
}

TEST_F(MirrorServiceTest, PlanesAreSentWithTheirDigests) {
  ASSERT_OK(client_->CreateModel(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {1200, 512})})})));
  v1::PlaneVersion version = Ask()->models(0).version();
  ASSERT_OK_AND_ASSIGN(const std::vector<v1::FetchPlanesResponse> messages, Fetch(version));
  ASSERT_GT(messages.size(), 4U);
  EXPECT_EQ(messages.front().begin().version().commit_number(), 0);
  ASSERT_EQ(messages.front().begin().ranks_size(), 2);
  std::string planes;
  for (size_t i = 1; i + 1 < messages.size(); ++i) planes += messages[i].planes();
  ASSERT_EQ(messages.back().end().digests_size(), 2);
  int64_t first_byte = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const int64_t bytes = messages.front().begin().ranks(rank).bytes();
    PlanesHash hash;
    for (int64_t offset = 0; offset < bytes; offset += kPlanesChunkBytes) {
      const std::string chunk = planes.substr(first_byte + offset, std::min(kPlanesChunkBytes, bytes - offset));
      hash.Add(offset, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(chunk.data()), chunk.size()));
    }
    EXPECT_EQ(messages.back().end().digests(rank).digest(), hash.digest());
    first_byte += bytes;
  }
  EXPECT_EQ(static_cast<int64_t>(planes.size()), first_byte);

  version.set_history_id(std::string(32, 'a'));
  EXPECT_THAT(Fetch(version), StatusIs(absl::StatusCode::kAborted, HasSubstr("mirror m: want commit 0")));
  const std::string metrics = Metrics();
  EXPECT_THAT(metrics, HasSubstr("paramshard_mirror_transfers_total{result=\"sent\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("paramshard_mirror_transfers_total{result=\"missed\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("paramshard_mirror_image_seconds_count 1\n"));
  EXPECT_THAT(metrics, HasSubstr(absl::StrCat("paramshard_mirror_sent_bytes_total ", first_byte, "\n")));
}

TEST_F(MirrorServiceTest, ReportsAreBounded) {
  v1::AskVersionsRequest request;
  request.add_reports()->set_last_error(std::string(5000, 'x'));
  EXPECT_THAT(Ask(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want reports of at most 4096")));
  request.clear_reports();
  for (int i = 0; i < 1025; ++i) request.add_reports()->set_mirror("r");
  EXPECT_THAT(Ask(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want at most 1024 reports")));
}

// Other mirrors still get the version that they were told.
TEST_F(MirrorServiceTest, MissesOfACallerDoNotMoveTheVersionOn) {
  ASSERT_OK(client_->CreateModel(MirroredSpec()));
  ASSERT_OK_AND_ASSIGN(v1::AskVersionsResponse asked, Ask());
  for (int i = 0; i < 20; ++i) {
    SCOPED_TRACE(i);
    v1::AskVersionsRequest request;
    request.add_missed()->set_model("m");
    *request.mutable_missed(0)->mutable_version() = asked.models(0).version();
    ASSERT_OK_AND_ASSIGN(asked, Ask(request));
    // The model is at commit 0: only that can have been missed.
    EXPECT_EQ(asked.models(0).version().commit_number(), 1);
  }
}

TEST_F(MirrorServiceTest, MirrorsCanBeTurnedOff) {
  StartDaemon([](DaemonConfig& config) { config.mirror_image_memory = 0; });
  EXPECT_THAT(Ask(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--mirror-image-memory is 0")));
}

}  // namespace
}  // namespace paramshard::server
