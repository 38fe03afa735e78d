#include "server/mirrors/model_follower.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/model/layout_fingerprint.h"
#include "common/model/model_spec_proto.h"
#include "common/model/names.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/polling.h"
#include "paramshard/v1/mirror.grpc.pb.h"
#include "server/mirrors/plane_versions.h"
#include "tests/server/mirrors/version_of.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr absl::Duration kTimeout = absl::Seconds(60);

// Node 0 of a training that owns all ranks, and whose transfers fail.
class FailingOwner final : public v1::MirrorService::Service {
 public:
  FailingOwner() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  grpc::Status DescribeModel(grpc::ServerContext*, const v1::DescribeModelRequest*,
                             v1::DescribeModelResponse* response) override {
    const v1::ModelSpec spec = MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {8, 4})})});
    const Layout layout(*ParseModelSpec(spec), 1);
    *response->mutable_spec() = spec;
    response->set_shard_size(1);
    response->set_spec_fingerprint(spec_fingerprint_);
    response->set_layout_fingerprint(LayoutFingerprint(layout));
    response->add_owners()->set_ranks(1);
    return grpc::Status::OK;
  }
  grpc::Status FetchPlanes(grpc::ServerContext*, const v1::FetchPlanesRequest*,
                           grpc::ServerWriter<v1::FetchPlanesResponse>*) override {
    const absl::MutexLock lock(&mu_);
    return failure_;
  }
  void FailWith(grpc::StatusCode code, const std::string& message) {
    const absl::MutexLock lock(&mu_);
    failure_ = grpc::Status(code, message);
  }
  // From now on it has another model of that name.
  void MakeAnew() { ++spec_fingerprint_; }
  uint64_t spec_fingerprint() const { return spec_fingerprint_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  absl::Mutex mu_;
  grpc::Status failure_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> spec_fingerprint_ = 1;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class ModelFollowerTest : public testing::Test {
 protected:
  void Start() {
    auto started = ModelFollower::Start({.model = "m",
                                         .mirror = "mirror",
                                         .source = &source_,
                                         .devices = {device_.get()},
                                         .left_readers = &left_readers_,
                                         .on_missed = [this] {
                                           const absl::MutexLock lock(&mu_);
                                           ++questions_;
                                         }});
    ASSERT_OK(started.status());
    follower_ = *std::move(started);
  }
  void Name(int64_t commit) {
    v1::AskVersionsResponse::Named named;
    named.set_model("m");
    *named.mutable_version() = ToProto(VersionOf(commit));
    const Layout layout(*ParseModelSpec(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {8, 4})})})), 1);
    named.set_spec_fingerprint(owner_.spec_fingerprint());
    named.set_layout_fingerprint(LayoutFingerprint(layout));
    follower_->Follow(named);
  }
  // Returns the error of the next transfer.
  std::string AwaitError() {
    const auto is_there = [&]() -> absl::StatusOr<bool> { return !follower_->Report().last_error().empty(); };
    EXPECT_THAT(Poll({.timeout = kTimeout}, is_there), IsOkAndHolds(true));
    return follower_->Report().last_error();
  }
  std::optional<v1::AskVersionsRequest::Missed> AwaitMissed() {
    std::optional<v1::AskVersionsRequest::Missed> missed;
    const auto is_there = [&]() -> absl::StatusOr<bool> {
      missed = follower_->TakeMissed();
      return missed.has_value();
    };
    EXPECT_THAT(Poll({.timeout = kTimeout}, is_there), IsOkAndHolds(true));
    return missed;
  }
  // Names a version, waits until it is missed, and returns a reader of the model.
  std::shared_ptr<Publication::Reader> Read(int64_t commit) {
    Name(commit);
    AwaitMissed();
    return *follower_->model()->publication().AddReader({.name = absl::StrCat("reader ", commit)});
  }
  int questions() {
    const absl::MutexLock lock(&mu_);
    return questions_;
  }

  const std::unique_ptr<ComputeDevice> device_ = MakeCpuDevice(0);
  FailingOwner owner_;
  SourceCalls source_{{.address = owner_.address(), .open = [](const std::string& address) {
                         return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
                       }}};
  absl::Mutex mu_;
  int questions_ ABSL_GUARDED_BY(mu_) = 0;
  LeftReaders left_readers_{{.log = std::make_shared<ThrottledLog>(), .grace = absl::Hours(1)}};
  std::unique_ptr<ModelFollower> follower_;  // ends first
};

// Node 0 rejects a report that is longer or no UTF-8, and the mirror would get no version any more.
TEST_F(ModelFollowerTest, ALongErrorOfAnOwnerIsCutInReports) {
  owner_.FailWith(grpc::StatusCode::INTERNAL, std::string(5000, 'x'));
  ASSERT_NO_FATAL_FAILURE(Start());
  Name(1);
  EXPECT_THAT(AwaitError(), AllOf(SizeIs(1024), StartsWith("INTERNAL: 127.0.0.1:"), EndsWith("xxx...")));
}

TEST_F(ModelFollowerTest, AnErrorOfOtherBytesIsEscapedInReports) {
  owner_.FailWith(grpc::StatusCode::INTERNAL, "a\xff\xc3");
  ASSERT_NO_FATAL_FAILURE(Start());
  Name(1);
  EXPECT_THAT(AwaitError(), EndsWith(": a\\xff\\xc3"));
}

TEST(ErrorTextTest, IsCutBetweenCharacters) {
  for (int shift = 0; shift < 3; ++shift) {
    std::string text(shift, 'x');
    for (int i = 0; i < 600; ++i) text.append("\xe2\x82\xac");
    const std::string cut = ErrorText(absl::InternalError(text));
    EXPECT_TRUE(IsUtf8(cut)) << shift;
    EXPECT_GT(cut.size(), 1000U) << shift;
    EXPECT_LE(cut.size(), 1024U) << shift;
  }
}

TEST_F(ModelFollowerTest, AnOwnerThatAlwaysMissesDoesNotMakeTheMirrorHurryForEver) {
  owner_.FailWith(grpc::StatusCode::ABORTED, "passed");
  ASSERT_NO_FATAL_FAILURE(Start());
  for (int64_t commit = 1; commit <= 30; ++commit) {
    Name(commit);
    const auto missed = AwaitMissed();
    ASSERT_TRUE(missed.has_value());
    EXPECT_EQ(missed->version().commit_number(), commit);
  }
  EXPECT_THAT(follower_->Report().last_error(), HasSubstr("missed 30 versions: ABORTED: 127.0.0.1:"));
  follower_.reset();
  EXPECT_EQ(questions(), 15);
}

TEST_F(ModelFollowerTest, ReadersOfModelsThatAreGoneAreWatched) {
  owner_.FailWith(grpc::StatusCode::ABORTED, "passed");
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::shared_ptr<Publication::Reader> first = Read(1);
  EXPECT_THAT(left_readers_.List(), IsEmpty());
  owner_.MakeAnew();
  std::shared_ptr<Publication::Reader> second = Read(2);
  ASSERT_THAT(left_readers_.List(), SizeIs(1));
  follower_->End("deleted");
  ASSERT_THAT(left_readers_.List(), SizeIs(2));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(left_readers_.List()[i].model, "m");
    EXPECT_EQ(left_readers_.List()[i].report.name, absl::StrCat("reader ", i + 1));
  }
  second.reset();
  EXPECT_THAT(left_readers_.List(), SizeIs(1));
}

}  // namespace
}  // namespace paramshard::server
