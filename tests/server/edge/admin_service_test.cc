#include "server/edge/admin_service.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "paramshard/v1/mirror.grpc.pb.h"
#include "paramshard/v1/reader.grpc.pb.h"
#include "server/base/version.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/edge/test_session.h"
#include "tests/server/state/test_spec.h"
#include "tests/server/training/command.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Stub = v1::AdminService::Stub;

class AdminServiceTest : public DaemonTestBase {
 protected:
  AdminServiceTest() {
    std::vector<v1::ParameterSpec> parameters;
    for (int i = 0; i < 15; ++i) parameters.push_back(MakeParameter(absl::StrCat("p", i), {4, 4}));
    EXPECT_OK(client_->CreateModel(MakeSpec("m", {MakeUnit("u", parameters)})));
  }

  absl::StatusOr<v1::ListShardsResponse> ListShards(int page_size, const std::string& token,
                                                    const std::string& model = "m") {
    v1::ListShardsRequest request;
    request.set_model(model);
    request.set_page_size(page_size);
    request.set_page_token(token);
    return client_->Call(client_->admin(), &Stub::ListShards, request);
  }
  absl::StatusOr<v1::DescribeParameterResponse> Describe(const std::string& model, const std::string& parameter) {
    v1::DescribeParameterRequest request;
    request.set_model(model);
    request.set_parameter(parameter);
    return client_->Call(client_->admin(), &Stub::DescribeParameter, request);
  }
  absl::StatusOr<v1::ListReadersResponse> ListReaders() {
    return client_->Call(client_->admin(), &Stub::ListReaders, v1::ListReadersRequest());
  }
  absl::StatusOr<v1::ListSessionsResponse> ListSessions() {
    return client_->Call(client_->admin(), &Stub::ListSessions, v1::ListSessionsRequest());
  }
};

TEST_F(AdminServiceTest, ARestartNeedsAKeeper) {
  EXPECT_THAT(client_->Call(client_->admin(), &Stub::Restart, v1::RestartRequest()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--keeper=on")));
}

TEST_F(AdminServiceTest, AnOrderToHealNamesANodeAndNeedsReplicas) {
  v1::HealModelRequest request;
  request.set_model("m");
  const auto heal = [&] { return client_->Call(client_->admin(), &Stub::HealModel, request); };
  EXPECT_THAT(heal(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("from_node is required")));
  request.set_from_node(1);
  EXPECT_THAT(heal(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want a node in [0, 1), got 1")));
  request.set_from_node(0);
  EXPECT_THAT(heal(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("let trainers come")));
  TestSession first(socket_dir());
  TestSession second(socket_dir());
  first.Attach(MakeAttach("m", 0));
  second.Attach(MakeAttach("m", 1));
  ASSERT_TRUE(first.AwaitStarted());
  EXPECT_THAT(heal(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("every node holds a replica")));
}

TEST_F(AdminServiceTest, TheLogLevelIsSetAndEveryChangeSaysForWhom) {
  const auto level = [&] {
    return client_->Call(client_->admin(), &Stub::GetVersion, v1::GetVersionRequest())->log_level();
  };
  const auto set = [&](v1::LogLevel to) {
    v1::SetLogLevelRequest request;
    request.set_level(to);
    return client_->Call(client_->admin(), &Stub::SetLogLevel, request);
  };
  ASSERT_EQ(level(), v1::LOG_LEVEL_INFO);
  testing::internal::CaptureStderr();
  EXPECT_EQ(set(v1::LOG_LEVEL_ERROR)->previous(), v1::LOG_LEVEL_INFO);
  EXPECT_EQ(level(), v1::LOG_LEVEL_ERROR);
  EXPECT_EQ(set(v1::LOG_LEVEL_INFO)->previous(), v1::LOG_LEVEL_ERROR);
  EXPECT_EQ(level(), v1::LOG_LEVEL_INFO);
  const std::string lines = testing::internal::GetCapturedStderr();
  const std::string caller = absl::StrCat("caller=\"process ", getpid(), " of user ", geteuid(), "\"");
  EXPECT_THAT(lines, HasSubstr(absl::StrCat("warning log level changed from=info to=error ", caller)));
  EXPECT_THAT(lines, HasSubstr(absl::StrCat("warning log level changed from=error to=info ", caller)));
}

TEST_F(AdminServiceTest, ALogLevelThatIsNoneChangesNothing) {
  for (const int level : {0, 5, -1}) {
    v1::SetLogLevelRequest request;
    request.set_level(static_cast<v1::LogLevel>(level));
    EXPECT_THAT(client_->Call(client_->admin(), &Stub::SetLogLevel, request),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("want debug, info, warning or error, got ", level))));
  }
  EXPECT_EQ(client_->Call(client_->admin(), &Stub::GetVersion, v1::GetVersionRequest())->log_level(),
            v1::LOG_LEVEL_INFO);
}

TEST_F(AdminServiceTest, ATraceIsOfAModelAndOfSoManySteps) {
  const auto trace = [&](const std::string& model, int steps) {
    v1::GetTraceRequest request;
    request.set_model(model);
    request.set_steps(steps);
    return client_->Call(client_->admin(), &Stub::GetTrace, request);
  };
  EXPECT_THAT(trace("", 0)->models(), IsEmpty()) << "before the first epoch";
  TestSession first(socket_dir());
  TestSession second(socket_dir());
  first.Attach(MakeAttach("m", 0));
  second.Attach(MakeAttach("m", 1));
  ASSERT_TRUE(first.AwaitStarted());
  ASSERT_OK_AND_ASSIGN(const v1::GetTraceResponse response, trace("m", 100));
  EXPECT_GT(response.now_ns(), 0);
  ASSERT_THAT(response.models(), SizeIs(1));
  EXPECT_EQ(response.models(0).model(), "m");
  EXPECT_EQ(response.models(0).epoch(), 1);
  EXPECT_THAT(response.models(0).units(), ElementsAre("u"));
  EXPECT_THAT(trace("x", 3), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(trace("m", 101),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want steps in [0, 100], got 101")));
  EXPECT_THAT(trace("m", -1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got -1")));
  v1::GetTraceRequest clock;
  clock.set_only_clock(true);
  EXPECT_THAT(client_->Call(client_->admin(), &Stub::GetTrace, clock)->models(), IsEmpty());
}

TEST_F(AdminServiceTest, ModelsAreListedByName) {
  ASSERT_OK(client_->CreateModel(MakeSpec("a", {MakeUnit("u", {MakeParameter("w", {4})})})));
  ASSERT_OK_AND_ASSIGN(const auto response,
                       client_->Call(client_->admin(), &Stub::ListModels, v1::ListModelsRequest()));
  ASSERT_THAT(response.models(), SizeIs(2));
  EXPECT_EQ(response.models(0).name(), "a");
  EXPECT_EQ(response.models(1).name(), "m");
  EXPECT_EQ(response.models(1).parameter_count(), 15);
  EXPECT_EQ(response.models(1).shard_size(), 2);
}

TEST_F(AdminServiceTest, PagesMakeTheWholeList) {
  ASSERT_OK_AND_ASSIGN(const v1::ListShardsResponse all, ListShards(0, ""));
  EXPECT_THAT(all.shards(), SizeIs(30));
  EXPECT_EQ(all.next_page_token(), "");
  for (int page_size : {1, 7, 10, 30, 31}) {
    std::string bytes;
    std::string token;
    int pages = 0;
    do {
      ASSERT_OK_AND_ASSIGN(const v1::ListShardsResponse page, ListShards(page_size, token));
      EXPECT_LE(page.shards_size(), page_size);
      for (const v1::Shard& shard : page.shards()) bytes += shard.SerializeAsString();
      token = page.next_page_token();
    } while (!token.empty() && ++pages < 100);
    std::string expected;
    for (const v1::Shard& shard : all.shards()) expected += shard.SerializeAsString();
    EXPECT_TRUE(bytes == expected) << "pages of " << page_size;
  }
}

TEST_F(AdminServiceTest, BadPagesAreRefused) {
  EXPECT_THAT(ListShards(-1, ""),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want page_size >= 0, got -1")));
  for (const std::string& token : {std::string("x"), std::string("-1"), std::string("1.5"),
                                   std::string("99999999999999999999"), std::string(100'000, 'x')}) {
    EXPECT_THAT(ListShards(10, token),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a page token of this RPC")));
  }
  EXPECT_THAT(ListShards(10, "", "x"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(AdminServiceTest, APageTokenPastTheEndIsAnEmptyPage) {
  EXPECT_THAT(ListShards(10, "1000000")->shards(), IsEmpty());
}

TEST_F(AdminServiceTest, AParameterIsDescribedOrNotFound) {
  ASSERT_OK_AND_ASSIGN(const v1::DescribeParameterResponse response, Describe("m", "p3"));
  EXPECT_EQ(response.parameter(), "p3");
  EXPECT_THAT(response.extents(), SizeIs(2));
  EXPECT_THAT(Describe("m", "p99"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("p99")));
  EXPECT_THAT(Describe("m", ""), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Describe("x", "p3"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(AdminServiceTest, StatsAreLimitedAndTheLimitIsChecked) {
  const auto stats = [&](const std::string& model, int limit) {
    v1::GetParameterStatsRequest request;
    request.set_model(model);
    request.set_limit(limit);
    return client_->Call(client_->admin(), &Stub::GetParameterStats, request);
  };
  EXPECT_THAT(stats("m", 0)->parameters(), SizeIs(15));
  EXPECT_THAT(stats("m", 4)->parameters(), SizeIs(4));
  EXPECT_EQ(stats("m", 4)->parameter_count(), 15);
  EXPECT_THAT(stats("m", -1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want limit >= 0, got -1")));
  EXPECT_THAT(stats("x", 4), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(AdminServiceTest, SessionsAreListedAsTheyBegan) {
  EXPECT_THAT(ListSessions()->sessions(), IsEmpty());
  TestSession second(socket_dir());
  second.Attach(MakeAttach("m", 1));
  ASSERT_TRUE(second.Read().has_accepted());
  ASSERT_OK_AND_ASSIGN(const v1::ListSessionsResponse waiting, ListSessions());
  ASSERT_THAT(waiting.sessions(), SizeIs(1));
  EXPECT_EQ(waiting.sessions(0).rank(), 1);
  EXPECT_FALSE(waiting.sessions(0).has_epoch());
  EXPECT_EQ(waiting.sessions(0).waits_for(), "other ranks");
  EXPECT_EQ(waiting.sessions(0).pid(), getpid());
  EXPECT_EQ(waiting.sessions(0).uid(), geteuid());
  EXPECT_EQ(waiting.sessions(0).device(), "cpu:1");
  EXPECT_GT(waiting.sessions(0).attached_at().seconds(), 0);

  TestSession first(socket_dir());
  first.Attach(MakeAttach("m", 0));
  ASSERT_TRUE(first.AwaitStarted());
  ASSERT_OK_AND_ASSIGN(const v1::ListSessionsResponse running, ListSessions());
  ASSERT_THAT(running.sessions(), SizeIs(2));
  EXPECT_EQ(running.sessions(0).rank(), 1) << "it came first";
  EXPECT_EQ(running.sessions(1).rank(), 0);
  EXPECT_EQ(running.sessions(1).epoch(), 1);
  EXPECT_EQ(running.sessions(1).waits_for(), "");
}

TEST_F(AdminServiceTest, ReadersAreListedUntilTheyLeave) {
  EXPECT_THAT(ListReaders()->readers(), IsEmpty());
  DaemonClient reader(socket_dir());
  v1::OpenReaderRequest request;
  request.set_model("m");
  request.set_name("evaluation\n");
  ASSERT_OK(reader.Call(*v1::ReaderService::NewStub(reader.channel()), &v1::ReaderService::Stub::OpenReader, request));
  ASSERT_OK_AND_ASSIGN(const v1::ListReadersResponse listed, ListReaders());
  ASSERT_THAT(listed.readers(), SizeIs(1));
  EXPECT_EQ(listed.readers(0).model(), "m");
  EXPECT_EQ(listed.readers(0).name(), "evaluation\\n");
  EXPECT_EQ(listed.readers(0).pid(), getpid());
  EXPECT_FALSE(listed.readers(0).reading());
  EXPECT_GT(listed.readers(0).mapped_bytes(), 0);
  EXPECT_FALSE(listed.readers(0).model_deleted());
  v1::DeleteModelRequest deletion;
  deletion.set_model("m");
  ASSERT_OK(client_->Call(client_->trainer(), &v1::TrainerService::Stub::DeleteModel, deletion));
  ASSERT_OK_AND_ASSIGN(const v1::ListReadersResponse left, ListReaders());
  ASSERT_THAT(left.readers(), SizeIs(1)) << "it has not let go";
  EXPECT_EQ(left.readers(0).model(), "m");
  EXPECT_EQ(left.readers(0).pid(), getpid());
  EXPECT_EQ(left.readers(0).mapped_bytes(), listed.readers(0).mapped_bytes());
  EXPECT_TRUE(left.readers(0).model_deleted());
  reader.CloseCompanion();
  while (!ListReaders()->readers().empty()) std::this_thread::yield();
}

TEST_F(AdminServiceTest, ATrainingListsTheMirrorsThatAskItAndIsNone) {
  const auto list = [&] { return client_->Call(client_->admin(), &Stub::ListMirrors, v1::ListMirrorsRequest()); };
  EXPECT_THAT(list()->mirrors(), IsEmpty());
  v1::AskVersionsRequest asked;
  asked.add_reports()->set_mirror("rollout-3");
  ASSERT_OK(
      client_->Call(*v1::MirrorService::NewStub(client_->channel()), &v1::MirrorService::Stub::AskVersions, asked));
  ASSERT_OK_AND_ASSIGN(const v1::ListMirrorsResponse listed, list());
  ASSERT_THAT(listed.mirrors(), SizeIs(1));
  EXPECT_EQ(listed.mirrors(0).mirror(), "rollout-3");
  v1::ActivateMirrorRequest request;
  request.set_model("m");
  EXPECT_THAT(client_->Call(client_->admin(), &Stub::ActivateMirror, request),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("this daemon is no mirror")));
}

TEST_F(AdminServiceTest, MemoryAddsUp) {
  ASSERT_OK_AND_ASSIGN(const auto memory, client_->Call(client_->admin(), &Stub::GetMemory, v1::GetMemoryRequest()));
  int64_t total = 0;
  std::set<std::string> classes;
  for (const v1::MemoryUse& use : memory.uses()) {
    total += use.size_bytes();
    classes.insert(use.memory_class());
  }
  EXPECT_EQ(memory.total_bytes(), total);
  EXPECT_GT(memory.resident_bytes(), total);
  EXPECT_THAT(classes, ElementsAre("exp_avg", "exp_avg_sq", "gradients", "master", "planes"));
}

class SavingAdminServiceTest : public AdminServiceTest {
 protected:
  SavingAdminServiceTest() {
    StartDaemon([this](DaemonConfig& config) { config.save_dir = saves_.path(); });
    EXPECT_OK(client_->CreateModel(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {4, 4})})})));
  }
  // The daemon is done with the folder before it goes.
  ~SavingAdminServiceTest() override {
    client_.reset();
    daemon_.reset();
  }

  absl::StatusOr<v1::SaveModelResponse> Save(const std::string& model, bool wait) {
    v1::SaveModelRequest request;
    request.set_model(model);
    request.set_wait(wait);
    return client_->Call(client_->admin(), &Stub::SaveModel, request);
  }
  absl::StatusOr<v1::ListSavesResponse> ListSaves(const std::string& model) {
    v1::ListSavesRequest request;
    request.set_model(model);
    return client_->Call(client_->admin(), &Stub::ListSaves, request);
  }

  const test::TemporaryDirectory saves_;
};

TEST_F(SavingAdminServiceTest, ASaveAnswersWithItsOutcome) {
  ASSERT_OK_AND_ASSIGN(const auto response, Save("m", /*wait=*/true));
  const v1::Save& save = response.save();
  EXPECT_EQ(save.state(), v1::SAVE_STATE_PUBLISHED) << save.error().text();
  EXPECT_EQ(save.model(), "m");
  EXPECT_EQ(save.number(), 1);
  EXPECT_EQ(save.reason(), v1::SAVE_REASON_CALL);
  EXPECT_THAT(save.path(), HasSubstr(saves_.path() + "/m/step-000000000000-" + save.history_id().substr(0, 8)));
  EXPECT_GT(save.begun_at().seconds(), 0);
  EXPECT_GT(save.size_bytes(), 0);
  ASSERT_OK_AND_ASSIGN(const auto again, Save("m", /*wait=*/true));
  EXPECT_EQ(again.save().state(), v1::SAVE_STATE_ALREADY_SAVED) << again.save().error().text();
  EXPECT_EQ(again.save().number(), 2);
  EXPECT_EQ(again.save().path(), save.path());
}

TEST_F(SavingAdminServiceTest, SavesAreListedWithTheirCounts) {
  ASSERT_OK(client_->CreateModel(MakeSpec("a", {MakeUnit("u", {MakeParameter("w", {4})})})));
  ASSERT_OK(Save("m", /*wait=*/true));
  ASSERT_OK(Save("m", /*wait=*/true));
  ASSERT_OK_AND_ASSIGN(const auto all, ListSaves(""));
  ASSERT_THAT(all.saves(), SizeIs(2));
  EXPECT_EQ(all.saves(0).state(), v1::SAVE_STATE_PUBLISHED);
  EXPECT_EQ(all.saves(1).state(), v1::SAVE_STATE_ALREADY_SAVED);
  ASSERT_THAT(all.counts(), SizeIs(2));
  EXPECT_EQ(all.counts(0).model(), "a");
  EXPECT_EQ(all.counts(1).published(), 1);
  EXPECT_EQ(all.counts(1).abandoned(), 0);
  ASSERT_OK_AND_ASSIGN(const auto none, ListSaves("a"));
  EXPECT_THAT(none.saves(), IsEmpty());
  EXPECT_THAT(ListSaves("nope").status(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SavingAdminServiceTest, ASaveThatBeganIsListedUntilItIsOver) {
  ASSERT_OK_AND_ASSIGN(const auto begun, Save("m", /*wait=*/false));
  EXPECT_EQ(begun.save().number(), 1);
  ASSERT_OK_AND_ASSIGN(const auto list, ListSaves("m"));
  ASSERT_THAT(list.saves(), SizeIs(1));
  EXPECT_EQ(list.saves(0).number(), 1);
}

TEST_F(AdminServiceTest, ADaemonWithoutAFolderRefusesSaves) {
  v1::SaveModelRequest request;
  request.set_model("m");
  EXPECT_THAT(client_->Call(client_->admin(), &Stub::SaveModel, request).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--save-dir")));
  request.set_model("nope");
  EXPECT_THAT(client_->Call(client_->admin(), &Stub::SaveModel, request).status(),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(AdminServiceTest, VerificationEndsWithASummary) {
  const auto context = client_->Context();
  v1::VerifyModelRequest request;
  request.set_model("m");
  const auto reader = client_->admin().VerifyModel(context.get(), request);
  v1::VerifyModelResponse response;
  int extents = 0;
  while (reader->Read(&response) && response.has_extent()) ++extents;
  EXPECT_EQ(extents, 30);
  EXPECT_EQ(response.summary().extent_count(), 30);
  EXPECT_EQ(response.summary().mismatch_count(), 0);
  EXPECT_THAT(response.summary().state_hash(), SizeIs(32));
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_OK(FromGrpc(reader->Finish()));
}

TEST_F(AdminServiceTest, VerificationOfAnUnknownModelIsNotFound) {
  const auto context = client_->Context();
  v1::VerifyModelResponse response;
  const auto reader = client_->admin().VerifyModel(context.get(), v1::VerifyModelRequest());
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_THAT(FromGrpc(reader->Finish()), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(AdminServiceTest, TheVersionNamesTheDaemon) {
  ASSERT_OK_AND_ASSIGN(const auto version, client_->Call(client_->admin(), &Stub::GetVersion, v1::GetVersionRequest()));
  EXPECT_EQ(version.version(), kVersion);
  EXPECT_THAT(version.devices(), ElementsAre("cpu:0", "cpu:1"));
  EXPECT_EQ(version.pid(), getpid());
  EXPECT_EQ(version.nodes(), 1);
  EXPECT_GT(version.started_at().seconds(), 0);
  EXPECT_NE(version.build_type(), "");
}

}  // namespace
}  // namespace paramshard::server
