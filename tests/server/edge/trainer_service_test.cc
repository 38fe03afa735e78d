#include "server/edge/trainer_service.h"

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/version.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/edge/test_session.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Stub = v1::TrainerService::Stub;

v1::ModelSpec Spec(int64_t rows = 8) { return MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {rows, 4})})}); }

class TrainerServiceTest : public DaemonTestBase {
 protected:
  absl::StatusOr<v1::GetModelResponse> GetModel(const std::string& name) {
    v1::GetModelRequest request;
    request.set_model(name);
    return client_->Call(client_->trainer(), &Stub::GetModel, request);
  }
  absl::Status DeleteModel(const std::string& name, const std::string& request_id = "") {
    v1::DeleteModelRequest request;
    request.set_model(name);
    request.set_request_id(request_id);
    return client_->Call(client_->trainer(), &Stub::DeleteModel, request).status();
  }
};

TEST_F(TrainerServiceTest, ARequestIdIsOfOneDeletion) {
  ASSERT_OK(client_->CreateModel(Spec()));
  ASSERT_OK(DeleteModel("m", "a"));
  EXPECT_OK(DeleteModel("m", "a"));
  v1::ModelSpec another = Spec();
  another.set_name("another");
  ASSERT_OK(client_->CreateModel(another));
  EXPECT_THAT(DeleteModel("another", "a"),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("the one that deleted m")));
  EXPECT_OK(GetModel("another"));
}

TEST_F(TrainerServiceTest, CapabilitiesSayWhatThisDaemonIs) {
  ASSERT_OK_AND_ASSIGN(const auto capabilities,
                       client_->Call(client_->trainer(), &Stub::GetCapabilities, v1::GetCapabilitiesRequest()));
  EXPECT_EQ(capabilities.version(), kVersion);
  EXPECT_THAT(capabilities.devices(), ElementsAre("cpu:0", "cpu:1"));
  EXPECT_EQ(capabilities.world_size(), 2);
  EXPECT_EQ(capabilities.first_rank(), 0);
  EXPECT_EQ(capabilities.node(), 0);
  EXPECT_EQ(capabilities.nodes(), 1);
  EXPECT_EQ(capabilities.formats_size(), v1::Format_MAX);
  EXPECT_THAT(capabilities.moment_types(),
              ElementsAre(v1::MOMENT_TYPE_FP32, v1::MOMENT_TYPE_BF16, v1::MOMENT_TYPE_FP16, v1::MOMENT_TYPE_FP8));
}

TEST_F(TrainerServiceTest, EveryFormatThatIsOfferedCanBeCreated) {
  ASSERT_OK_AND_ASSIGN(const auto capabilities,
                       client_->Call(client_->trainer(), &Stub::GetCapabilities, v1::GetCapabilitiesRequest()));
  for (const int format : capabilities.formats()) {
    v1::ModelSpec spec = Spec();
    spec.set_name(absl::StrCat("format ", format));
    spec.mutable_units(0)->mutable_parameters(0)->set_format(static_cast<v1::Format>(format));
    EXPECT_OK(client_->CreateModel(spec)) << v1::Format_Name(format);
  }
}

TEST_F(TrainerServiceTest, AModelIsCreatedOnceAndJoinedAfterwards) {
  ASSERT_OK_AND_ASSIGN(const v1::CreateModelResponse first, client_->CreateModel(Spec()));
  EXPECT_TRUE(first.created());
  EXPECT_EQ(first.model().shard_size(), 2);
  EXPECT_EQ(first.model().world_size(), 2);
  EXPECT_EQ(first.model().parameter_count(), 1);
  EXPECT_EQ(first.model().element_count(), 32);
  EXPECT_FALSE(first.model().has_epoch()) << "none has started";
  EXPECT_FALSE(first.model().running());
  ASSERT_OK_AND_ASSIGN(const v1::CreateModelResponse second, client_->CreateModel(Spec()));
  EXPECT_FALSE(second.created());
  EXPECT_EQ(second.model().SerializeAsString(), first.model().SerializeAsString());
  ASSERT_OK_AND_ASSIGN(const v1::GetModelResponse got, GetModel("m"));
  EXPECT_EQ(got.model().SerializeAsString(), first.model().SerializeAsString());
}

TEST_F(TrainerServiceTest, ACreationAnswersWhereTheValuesComeFrom) {
  const auto create = [&](const std::string& run, bool values_follow) {
    v1::CreateModelRequest request;
    *request.mutable_spec() = Spec();
    request.set_run(run);
    request.set_values_follow(values_follow);
    return client_->Call(client_->trainer(), &v1::TrainerService::Stub::CreateModel, request);
  };
  ASSERT_OK_AND_ASSIGN(v1::CreateModelResponse answer, create("a", true));
  EXPECT_TRUE(answer.created());
  EXPECT_EQ(answer.model().origin(), v1::VALUE_ORIGIN_IMPORTING);
  EXPECT_TRUE(answer.same_run());
  ASSERT_OK_AND_ASSIGN(answer, create("a", false));
  EXPECT_EQ(answer.model().origin(), v1::VALUE_ORIGIN_IMPORTING) << "what a second call says changes nothing";
  EXPECT_TRUE(answer.same_run());
  for (const char* const another : {"b", ""}) {
    ASSERT_OK_AND_ASSIGN(answer, create(another, true));
    EXPECT_FALSE(answer.same_run()) << another;
  }
  EXPECT_THAT(create(std::string(513, 'a'), true), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("run")));
}

TEST_F(TrainerServiceTest, ADefaultThatIsWrittenOutIsTheSameSpec) {
  ASSERT_OK(client_->CreateModel(Spec()));
  v1::ModelSpec spec = Spec();
  spec.set_gather_slots(3);
  spec.mutable_units(0)->set_reshard_after_forward(true);
  EXPECT_OK(client_->CreateModel(spec));
}

TEST_F(TrainerServiceTest, BadSpecsAreRefusedByTheirRule) {
  const auto refused = [&](auto change, const std::string& message) {
    v1::ModelSpec spec = Spec();
    change(spec);
    EXPECT_THAT(client_->CreateModel(spec), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  const auto parameter = [](v1::ModelSpec& spec) { return spec.mutable_units(0)->mutable_parameters(0); };
  refused([](v1::ModelSpec& spec) { spec.clear_name(); }, "name");
  refused([](v1::ModelSpec& spec) { spec.set_name(std::string(1 << 20, 'x')); }, "name");
  refused([](v1::ModelSpec& spec) { spec.clear_units(); }, "unit");
  refused([](v1::ModelSpec& spec) { spec.set_shard_size(7); }, "shard size");
  refused([&](v1::ModelSpec& spec) { parameter(spec)->set_name(std::string("a\0b", 3)); }, "name");
  refused([&](v1::ModelSpec& spec) { parameter(spec)->add_shape(0); }, "w");
  refused([&](v1::ModelSpec& spec) { parameter(spec)->add_shape(int64_t{1} << 62); }, "w");
  refused([&](v1::ModelSpec& spec) { parameter(spec)->set_group(1); }, "group");
  EXPECT_THAT(GetModel("m"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(TrainerServiceTest, AnotherSpecOfTheSameNameNamesTheDifference) {
  ASSERT_OK(client_->CreateModel(Spec(8)));
  EXPECT_THAT(client_->CreateModel(Spec(9)), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("[9, 4]")));
}

TEST_F(TrainerServiceTest, AModelThatDoesNotFitIsRefused) {
  EXPECT_THAT(client_->CreateModel(Spec(int64_t{1} << 37)),
              StatusIs(absl::StatusCode::kResourceExhausted, AllOf(HasSubstr("needed"), HasSubstr("free"))));
  ASSERT_OK_AND_ASSIGN(const auto memory,
                       client_->Call(client_->admin(), &v1::AdminService::Stub::GetMemory, v1::GetMemoryRequest()));
  EXPECT_EQ(memory.total_bytes(), 0);
}

TEST_F(TrainerServiceTest, UnknownModelsAreNotFoundAndTheKnownOnesNamed) {
  ASSERT_OK(client_->CreateModel(Spec()));
  for (const std::string& name : {std::string("x"), std::string(), std::string(100'000, 'x')}) {
    EXPECT_THAT(GetModel(name), StatusIs(absl::StatusCode::kNotFound, HasSubstr("not found; this daemon holds [m]")));
    EXPECT_THAT(DeleteModel(name), StatusIs(absl::StatusCode::kNotFound));
  }
}

// A name is quoted in messages, and gRPC takes nothing but text there.
TEST_F(TrainerServiceTest, NamesThatAreNoTextDoNotHurt) {
  EXPECT_THAT(GetModel("a\nb"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(GetModel(std::string("a\0b", 3)), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(TrainerServiceTest, ADeletedModelIsGoneAndARepetitionAnswersAlike) {
  ASSERT_OK(client_->CreateModel(Spec()));
  EXPECT_OK(DeleteModel("m", "once"));
  EXPECT_THAT(GetModel("m"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_OK(DeleteModel("m", "once"));
  EXPECT_THAT(DeleteModel("m", "twice"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(TrainerServiceTest, AModelWithATrainerIsNotDeleted) {
  ASSERT_OK(client_->CreateModel(Spec()));
  TestSession session(socket_dir());
  session.Attach(MakeAttach("m", 1));
  ASSERT_TRUE(session.Read().has_accepted());
  EXPECT_THAT(DeleteModel("m"), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         AllOf(HasSubstr("rank 1"), HasSubstr(absl::StrCat("process ", getpid())))));
  session.HalfClose();
  (void)session.Finish();
  EXPECT_OK(DeleteModel("m"));
}

}  // namespace
}  // namespace paramshard::server
