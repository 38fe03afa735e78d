// Restores by RPC, of checkpoints that the test has written.
#include "server/edge/restore_calls.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/content_hash.h"
#include "common/checkpoint/step_folder.h"
#include "common/model/model_spec_proto.h"
#include "common/rpc/durations.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/edge/test_session.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using checkpoint::SavedModel;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr char kName[] = "everything";

TEST(RestoreCallsTest, OnlyTheDaemonsUserAndRootNameFolders) {
  EXPECT_OK(CheckMayNameFolder(geteuid()));
  EXPECT_OK(CheckMayNameFolder(0));
  EXPECT_THAT(CheckMayNameFolder(geteuid() + 1),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(absl::StrCat("got user ", geteuid() + 1))));
}

// A daemon of two ranks with a folder of checkpoints.
class RestoreCallsFixture : public DaemonTestBase {
 protected:
  RestoreCallsFixture() { StartWith(""); }

  void StartWith(const std::string& restore) {
    StartDaemon([&](DaemonConfig& config) {
      config.save_dir = saves_.path();
      config.restore = restore;
    });
  }

  // Writes a checkpoint of a step, saved after all earlier ones.
  std::string Write(int64_t step, const checkpoint::World& world = {2, 2}, uint64_t seed = 1) {
    return WriteOf(SavedModel(checkpoint::SpecOfEverything(), seed), step, world);
  }
  std::string WriteOf(const SavedModel& saved, int64_t step, const checkpoint::World& world = {2, 2}) {
    ++saves_written_;
    return saved.Write(
        absl::StrCat(saves_.path(), "/", checkpoint::ModelFolderName(saved.spec().name)),
        {.world = world, .step = step, .save_serial = saves_written_, .history = absl::uint128(saves_written_) << 100});
  }

  static v1::ModelSpec Spec() { return ModelSpecToProto(checkpoint::SpecOfEverything()); }
  absl::StatusOr<v1::CreateModelResponse> Create(const std::string& checkpoint, const v1::ModelSpec& spec = Spec()) {
    v1::CreateModelRequest request;
    *request.mutable_spec() = spec;
    request.mutable_restore()->set_checkpoint(checkpoint);
    return client_->Call(client_->trainer(), &v1::TrainerService::Stub::CreateModel, request);
  }

  struct Restored {
    std::vector<v1::RestoreProgress> progress;
    v1::RestoreSummary summary;
  };
  absl::StatusOr<Restored> Restore(const std::string& checkpoint, const std::string& model = kName) {
    v1::RestoreModelRequest request;
    request.set_model(model);
    request.mutable_source()->set_checkpoint(checkpoint);
    const auto context = client_->Context();
    const auto reader = client_->admin().RestoreModel(context.get(), request);
    Restored restored;
    for (v1::RestoreModelResponse response; reader->Read(&response);) {
      if (response.has_progress()) restored.progress.push_back(response.progress());
      if (response.has_summary()) restored.summary = response.summary();
    }
    const absl::Status status = FromGrpc(reader->Finish());
    if (!status.ok()) return status;
    return restored;
  }
  // Refused, and nothing was changed.
  void ExpectRefused(const std::string& checkpoint, absl::StatusCode code, const std::string& message) {
    const std::string before = client_->StateHash(kName);
    EXPECT_THAT(Restore(checkpoint).status(), StatusIs(code, HasSubstr(message)));
    EXPECT_EQ(client_->StateHash(kName), before) << message;
    EXPECT_EQ(Model().commit_number(), 0);
  }

  v1::Model Model() {
    v1::GetModelRequest request;
    request.set_model(kName);
    const auto response = client_->Call(client_->trainer(), &v1::TrainerService::Stub::GetModel, request);
    EXPECT_OK(response.status());
    return response.ok() ? response->model() : v1::Model();
  }
  std::vector<v1::ModelSummary> Models() {
    const auto response = client_->Call(client_->admin(), &v1::AdminService::Stub::ListModels, v1::ListModelsRequest());
    EXPECT_OK(response.status());
    return {response->models().begin(), response->models().end()};
  }

  const test::TemporaryDirectory saves_;
  int saves_written_ = 0;
};

// The first bytes of the data: of a master.
void Damage(const std::string& folder) {
  const std::string file = folder + "/rank-00000-of-00002.safetensors";
  std::string bytes = checkpoint::ReadText(file);
  const auto header = static_cast<uint8_t>(bytes[0]) + 256 * static_cast<uint8_t>(bytes[1]);
  bytes[8 + header] ^= 1;
  checkpoint::WriteText(file, bytes);
}

// --- RestoreModel ---

class RestoreModelTest : public RestoreCallsFixture {
 protected:
  RestoreModelTest() { EXPECT_OK(client_->CreateModel(Spec())); }
};

TEST_F(RestoreModelTest, OfWhateverWorldItIsTheSameState) {
  const std::string initial = client_->StateHash(kName);
  std::vector<std::string> hashes;
  for (const checkpoint::World& world : std::vector<checkpoint::World>{{1, 1}, {2, 2}, {3, 3}, {4, 2}}) {
    const std::string path = Write(100 * world.size, world);
    ASSERT_OK_AND_ASSIGN(const Restored restored, Restore(absl::StrCat(100 * world.size)));
    EXPECT_EQ(restored.summary.path(), path);
    EXPECT_EQ(restored.summary.step(), 100 * world.size);
    EXPECT_EQ(restored.summary.version(), 10);
    EXPECT_EQ(restored.summary.saved_world_size(), world.size);
    EXPECT_EQ(restored.summary.saved_shard_size(), world.shard_size);
    EXPECT_GT(restored.summary.size_bytes(), 0);
    EXPECT_GT(DurationFromProto(restored.summary.elapsed()), absl::ZeroDuration());
    const v1::Model model = Model();
    EXPECT_EQ(model.commit_number(), 100 * world.size);
    EXPECT_EQ(model.version(), 10);
    EXPECT_EQ(model.history_id(), restored.summary.history_id());
    EXPECT_EQ(model.lineage(), restored.summary.lineage());
    hashes.push_back(client_->StateHash(kName));
  }
  EXPECT_NE(hashes.front(), initial);
  EXPECT_THAT(hashes, ::testing::Each(hashes.front()));
}

TEST_F(RestoreModelTest, TellsHowFarItIsFromNothingToAll) {
  Write(12);
  ASSERT_OK_AND_ASSIGN(const Restored restored, Restore("latest"));
  ASSERT_GE(restored.progress.size(), 2u);
  EXPECT_EQ(restored.progress.front().done_bytes(), 0);
  EXPECT_GT(restored.progress.front().all_bytes(), 0);
  EXPECT_EQ(restored.progress.back().done_bytes(), restored.progress.front().all_bytes());
}

TEST_F(RestoreModelTest, LatestIsTheOneThatWasSavedLast) {
  Write(20);
  const std::string branch = Write(10, {2, 2}, 2);
  ASSERT_OK_AND_ASSIGN(const Restored restored, Restore("latest"));
  EXPECT_EQ(restored.summary.path(), branch);
  EXPECT_EQ(Model().commit_number(), 10);
}

TEST_F(RestoreModelTest, AFolderIsNamedOrGivenWithItsPath) {
  const std::string path = Write(12);
  ASSERT_OK_AND_ASSIGN(const Restored by_name, Restore(std::filesystem::path(path).filename().string()));
  EXPECT_EQ(by_name.summary.path(), path);
  const test::TemporaryDirectory copies;
  const std::string copy = copies.path() + "/copy";
  std::filesystem::copy(path, copy);
  StartDaemon([](DaemonConfig&) {});
  ASSERT_OK(client_->CreateModel(Spec()));
  EXPECT_THAT(Restore("latest").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--save-dir is not set")));
  ASSERT_OK_AND_ASSIGN(const Restored by_path, Restore(copy));
  EXPECT_EQ(by_path.summary.path(), copy);
}

TEST_F(RestoreModelTest, WhatIsNotThereIsNotFoundAndWhatIsThereNamed) {
  ExpectRefused("latest", absl::StatusCode::kNotFound, "found none in");
  Write(12);
  ExpectRefused("13", absl::StatusCode::kNotFound, "found step-000000000012-");
  ExpectRefused("step-000000000012-ffffffff", absl::StatusCode::kNotFound, "found step-000000000012-");
  ExpectRefused(saves_.path() + "/nowhere", absl::StatusCode::kNotFound, "nowhere");
  ExpectRefused(saves_.path(), absl::StatusCode::kNotFound, "manifest.json");
  EXPECT_THAT(Restore("latest", "nobody").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("model nobody: not found")));
}

TEST_F(RestoreModelTest, TextsThatNameNoCheckpointAreRefused) {
  for (const char* const text : {"", "newest", "-1", "step-12", "everything/step-000000000012-00000000", "."}) {
    ExpectRefused(text, kInvalid, "want latest, a step, the name of a checkpoint's folder or an absolute path");
  }
}

TEST_F(RestoreModelTest, ACheckpointOfAnotherModelOrSpecIsRefused) {
  const std::string tiny = WriteOf(SavedModel(checkpoint::TinySpec(), 1), 12);
  ExpectRefused(tiny, kInvalid, "want a checkpoint of this model, got one of tiny");
  ModelSpec spec = checkpoint::SpecOfEverything();
  spec.units[0].parameters[1].shape = {33, 70};
  WriteOf(SavedModel(checkpoint::Checked(spec), 1), 13);
  ExpectRefused("13", kInvalid, "parameter halves");
}

TEST_F(RestoreModelTest, MomentsOfAnotherTypeAreConvertedWhenThatIsAskedFor) {
  ModelSpec spec = checkpoint::SpecOfEverything();
  spec.units[0].parameters[0].exp_avg_type = MomentType::kBF16;
  WriteOf(SavedModel(checkpoint::Checked(spec), 1), 12);
  ExpectRefused("12", kInvalid, "ask for moments to be converted");
  v1::RestoreModelRequest request;
  request.set_model(kName);
  request.mutable_source()->set_checkpoint("12");
  request.mutable_source()->set_convert_moments(true);
  const auto context = client_->Context();
  const auto reader = client_->admin().RestoreModel(context.get(), request);
  v1::RestoreModelResponse last;
  while (reader->Read(&last)) {
  }
  EXPECT_OK(FromGrpc(reader->Finish()));
  EXPECT_EQ(last.summary().step(), 12);
}

TEST_F(RestoreModelTest, ANewerFormatSaysSo) {
  const std::string folder = Write(12);
  std::string text = checkpoint::ReadText(folder + "/manifest.json");
  const std::string version = "\"format_version\": 1";
  text.replace(text.find(version), version.size(), "\"format_version\": 2");
  const size_t digits = text.size() - 36;
  text.replace(digits, 32, checkpoint::HashText(checkpoint::HashBytes(text.substr(0, digits))));
  checkpoint::WriteText(folder + "/manifest.json", text);
  ExpectRefused(folder, absl::StatusCode::kFailedPrecondition, "want at most 1, got 2");
}

TEST_F(RestoreModelTest, MissingAndExtraFilesAreRefused) {
  const std::string folder = Write(12);
  const std::string extra = folder + "/rank-00002-of-00003.safetensors";
  checkpoint::WriteText(extra, "");
  ExpectRefused("12", kInvalid, "rank-00002-of-00003.safetensors");
  std::filesystem::remove(extra);
  std::filesystem::remove(folder + "/rank-00001-of-00002.safetensors");
  ExpectRefused("12", absl::StatusCode::kDataLoss, "rank-00001-of-00002.safetensors");
}

TEST_F(RestoreModelTest, AFolderThatOthersMayWriteToIsRefused) {
  const std::string folder = Write(12);
  ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  ExpectRefused("12", absl::StatusCode::kPermissionDenied, folder);
}

TEST_F(RestoreModelTest, AModelWithATrainerKeepsItsState) {
  Write(12);
  TestSession session(socket_dir());
  session.Attach(MakeAttach(kName, 0));
  ASSERT_TRUE(session.Read().has_accepted());
  ExpectRefused("12", absl::StatusCode::kFailedPrecondition, "rank 0 is attached (process ");
}

TEST_F(RestoreModelTest, RowsThatAreDamagedSpoilTheModelUntilItIsMadeAnew) {
  Damage(Write(12));
  EXPECT_THAT(Restore("12").status(), StatusIs(absl::StatusCode::kDataLoss,
                                               AllOf(HasSubstr("a restore broke off"), HasSubstr("rank-00000-of"))));
  EXPECT_THAT(Models(), ElementsAre(::testing::Property(&v1::ModelSummary::unusable, HasSubstr("delete the model"))));
  v1::DeleteModelRequest request;
  request.set_model(kName);
  ASSERT_OK(client_->Call(client_->trainer(), &v1::TrainerService::Stub::DeleteModel, request).status());
  Write(13);
  ASSERT_OK(Create("13"));
  EXPECT_EQ(Model().commit_number(), 13);
}

TEST_F(RestoreModelTest, AnotherCheckpointMakesAModelUsableAgain) {
  Damage(Write(12));
  EXPECT_THAT(Restore("12").status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("restore it, or delete")));
  Write(13);
  ASSERT_OK(Restore("13"));
  EXPECT_THAT(Models(), ElementsAre(::testing::Property(&v1::ModelSummary::unusable, "")));
  EXPECT_EQ(Model().commit_number(), 13);
}

// --- CreateModel ---

using CreateRestoredTest = RestoreCallsFixture;

TEST_F(CreateRestoredTest, AModelBeginsWithTheStateThatARestoreBrings) {
  Write(12);
  ASSERT_OK_AND_ASSIGN(const v1::CreateModelResponse created, Create("latest"));
  EXPECT_TRUE(created.created());
  EXPECT_EQ(created.restored().step(), 12);
  EXPECT_EQ(created.model().commit_number(), 12);
  EXPECT_EQ(created.model().history_id(), created.restored().history_id());
  const std::string hash = client_->StateHash(kName);
  ASSERT_OK(Restore("12"));
  EXPECT_EQ(client_->StateHash(kName), hash);
  ASSERT_OK_AND_ASSIGN(const v1::CreateModelResponse joined, Create("latest"));
  EXPECT_FALSE(joined.created());
  EXPECT_FALSE(joined.has_restored());
}

TEST_F(CreateRestoredTest, WithoutACheckpointLatestIsAFreshStartAndAStepAnError) {
  EXPECT_THAT(Create("12").status(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Models(), IsEmpty());
  ASSERT_OK_AND_ASSIGN(const v1::CreateModelResponse created, Create("latest"));
  EXPECT_TRUE(created.created());
  EXPECT_FALSE(created.has_restored());
  EXPECT_EQ(created.model().commit_number(), 0);
}

// The damaged checkpoint may be the latest: an unreadable one must not cause a fresh start.
TEST_F(CreateRestoredTest, ADamagedManifestIsNoFreshStart) {
  checkpoint::WriteText(Write(12) + "/manifest.json", "{}");
  EXPECT_THAT(Create("latest").status(), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(Models(), IsEmpty());
}

TEST_F(CreateRestoredTest, ALostFolderOfCheckpointsIsNoFreshStart) {
  std::filesystem::remove(saves_.path());
  EXPECT_THAT(Create("latest").status(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(saves_.path())));
  EXPECT_THAT(Models(), IsEmpty());
}

TEST_F(CreateRestoredTest, ARestoreThatBreaksOffLeavesNoModel) {
  Damage(Write(12));
  EXPECT_THAT(Create("12").status(), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(Models(), IsEmpty());
  Write(13);
  ASSERT_OK_AND_ASSIGN(const v1::CreateModelResponse created, Create("13"));
  EXPECT_TRUE(created.created());
  EXPECT_EQ(created.model().commit_number(), 13);
}

TEST_F(CreateRestoredTest, NoneIsAFreshStartWhateverTheDaemonsFlagSays) {
  Write(12);
  StartWith("latest");
  ASSERT_OK_AND_ASSIGN(const v1::CreateModelResponse fresh, Create("none"));
  EXPECT_TRUE(fresh.created());
  EXPECT_FALSE(fresh.has_restored());
  EXPECT_EQ(fresh.model().origin(), v1::VALUE_ORIGIN_INITIAL);
  EXPECT_EQ(fresh.model().commit_number(), 0);
  EXPECT_THAT(Restore("none").status(), StatusIs(kInvalid, HasSubstr("names no checkpoint")));
  ASSERT_OK(Restore("latest").status());
  EXPECT_EQ(Model().origin(), v1::VALUE_ORIGIN_RESTORED);
}

TEST_F(CreateRestoredTest, TheDaemonsFlagHoldsWhereTheCallSaysNothing) {
  Write(12);
  Write(13);
  StartWith("latest");
  ASSERT_OK_AND_ASSIGN(const v1::CreateModelResponse latest, client_->CreateModel(Spec()));
  EXPECT_EQ(latest.restored().step(), 13);
  ASSERT_OK_AND_ASSIGN(const v1::CreateModelResponse fresh,
                       client_->CreateModel(ModelSpecToProto(checkpoint::TinySpec())));
  EXPECT_TRUE(fresh.created());
  EXPECT_FALSE(fresh.has_restored());
  StartWith("12");
  ASSERT_OK_AND_ASSIGN(const v1::CreateModelResponse step, client_->CreateModel(Spec()));
  EXPECT_EQ(step.restored().step(), 12);
  EXPECT_THAT(client_->CreateModel(ModelSpecToProto(checkpoint::TinySpec())),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("tiny")));
  StartWith("12");
  ASSERT_OK_AND_ASSIGN(const v1::CreateModelResponse asked, Create("13"));
  EXPECT_EQ(asked.restored().step(), 13);
}

}  // namespace
}  // namespace paramshard::server
