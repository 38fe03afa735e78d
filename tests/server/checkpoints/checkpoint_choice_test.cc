#include "server/checkpoints/checkpoint_choice.h"

#include <filesystem>
#include <string>

#include "common/checkpoint/step_folder.h"
#include "gmock/gmock.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

namespace fs = std::filesystem;
using checkpoint::kManifestFileName;
using checkpoint::WriteText;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using Kind = CheckpointRequest::Kind;

constexpr absl::uint128 kHistory = absl::MakeUint128(0x0123456789abcdef, 1);
const CheckpointRequest kLatest;

CheckpointRequest Step(int64_t step) { return {.kind = Kind::kStep, .step = step}; }
CheckpointRequest Folder(std::string name) { return {.kind = Kind::kFolder, .folder = std::move(name)}; }

TEST(CheckpointRequestTest, IsReadFromATextOfFourKinds) {
  EXPECT_THAT(ParseCheckpointRequest("latest"), IsOkAndHolds(kLatest));
  EXPECT_THAT(ParseCheckpointRequest("12000"), IsOkAndHolds(Step(12000)));
  EXPECT_THAT(ParseCheckpointRequest("step-000000012000-0123abcd"), IsOkAndHolds(Folder("step-000000012000-0123abcd")));
  EXPECT_THAT(ParseCheckpointRequest("/copies/good"),
              IsOkAndHolds(CheckpointRequest{.kind = Kind::kPath, .folder = "/copies/good"}));
  for (const char* const text : {"", "newest", "copies/good", "-1", "step-12", "../step-000000012000-0123abcd",
                                 "step-000000012000-0123abcd.tmp-00000000000000000000000000000001"}) {
    EXPECT_THAT(ParseCheckpointRequest(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("latest, a step")))
        << text;
  }
}

class CheckpointChoiceTest : public testing::Test {
 protected:
  std::string Write(int64_t step, int64_t serial, absl::uint128 history = kHistory) const {
    return model_.Write(root() + "/tiny", {.step = step, .save_serial = serial, .history = history});
  }
  const std::string& root() const { return root_.path(); }

 private:
  const test::TemporaryDirectory root_;
  const checkpoint::SavedModel model_{checkpoint::TinySpec(), 1};
};

TEST_F(CheckpointChoiceTest, APathNeedsNoRoot) {
  const std::string path = Write(20, 1);
  const CheckpointRequest request{.kind = Kind::kPath, .folder = path};
  ASSERT_OK_AND_ASSIGN(const CheckpointChoice choice, ChooseCheckpoint("", "tiny", request));
  EXPECT_EQ(choice.path, path);
  EXPECT_EQ(choice.step, 20);
  EXPECT_THAT(ChooseCheckpoint("", "other", request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got one of tiny")));
  EXPECT_THAT(ChooseCheckpoint("", "tiny", kLatest),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--save-dir")));
}

TEST_F(CheckpointChoiceTest, ThereIsNoneOnlyWhereTheRootCanBeRead) {
  EXPECT_THAT(HasCheckpoint(root(), "tiny"), IsOkAndHolds(false));
  EXPECT_THAT(HasCheckpoint(root() + "/lost", "tiny"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("lost")));
  checkpoint::WriteText(Write(20, 1) + "/manifest.json", "damaged");
  EXPECT_THAT(HasCheckpoint(root(), "tiny"), IsOkAndHolds(true));
  EXPECT_THAT(HasCheckpoint(root(), "other"), IsOkAndHolds(false));
}

TEST_F(CheckpointChoiceTest, LatestStepAndFolderAreFound) {
  const std::string first = Write(20, 1);
  const std::string other = Write(30, 2);
  const std::string branch = Write(20, 3, ~kHistory);
  ASSERT_OK_AND_ASSIGN(const CheckpointChoice latest, ChooseCheckpoint(root(), "tiny", kLatest));
  EXPECT_EQ(latest.path, branch);
  EXPECT_EQ(latest.step, 20);
  EXPECT_EQ(ChooseCheckpoint(root(), "tiny", Step(20))->path, branch);
  EXPECT_EQ(ChooseCheckpoint(root(), "tiny", Step(30))->path, other);
  EXPECT_EQ(ChooseCheckpoint(root(), "tiny", Folder("step-000000000020-01234567"))->path, first);
}

TEST_F(CheckpointChoiceTest, OtherDaemonsFindTheSame) {
  Write(20, 1);
  Write(30, 2);
  ASSERT_OK_AND_ASSIGN(CheckpointChoice choice, ChooseCheckpoint(root(), "tiny", Step(20)));
  EXPECT_EQ(choice.id.folder, "step-000000000020-01234567");
  EXPECT_EQ(FindCheckpoint(root(), "tiny", choice.id)->path, choice.path);
  ++choice.id.save_id;
  EXPECT_THAT(FindCheckpoint(root(), "tiny", choice.id),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the same folder")));
}

TEST_F(CheckpointChoiceTest, ErrorsSayWhatThereIs) {
  Write(20, 1);
  Write(30, 2);
  EXPECT_THAT(ChooseCheckpoint(root(), "tiny", Step(25)),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("restore tiny: "), HasSubstr("no checkpoint of step 25"),
                             HasSubstr("found step-000000000020-01234567, step-000000000030-01234567"))));
  EXPECT_THAT(ChooseCheckpoint(root(), "tiny", Folder("step-000000000025-01234567")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("found step-000000000020-01234567")));
  EXPECT_THAT(ChooseCheckpoint(root(), "other", kLatest),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("has the folders tiny")));
  fs::create_directory(root() + "/empty");
  EXPECT_THAT(ChooseCheckpoint(root(), "empty", kLatest),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("found none in ")));
  EXPECT_THAT(ChooseCheckpoint(root() + "/none", "tiny", kLatest),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none cannot be read")));
}

TEST_F(CheckpointChoiceTest, OfManyTheLastStepsAreNamed) {
  for (int step = 1; step <= 11; ++step) Write(step, 20 - step);
  EXPECT_THAT(
      ChooseCheckpoint(root(), "tiny", Step(12)),
      StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("step-000000000011-01234567 and 3 more"),
                                                  HasSubstr("-000000000004-"), Not(HasSubstr("-000000000003-")))));
}

TEST_F(CheckpointChoiceTest, ADamagedStepThatIsNamedIsSaidToBeDamagedAndWholeOnesAreOffered) {
  Write(20, 1);
  WriteText(Write(30, 2) + "/" + kManifestFileName, "{}");
  WriteText(Write(40, 3) + "/" + kManifestFileName, "{}");
  for (const CheckpointRequest& request : {Step(30), Folder("step-000000000030-01234567")}) {
    EXPECT_THAT(ChooseCheckpoint(root(), "tiny", request),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr("step-000000000030-01234567/manifest.json: "), Not(HasSubstr("latest")),
                               EndsWith("; found step-000000000020-01234567"))));
  }
  EXPECT_THAT(ChooseCheckpoint(root(), "tiny", Step(30)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the checkpoint of step 30 is damaged")));
  WriteText(root() + "/tiny/step-000000000020-01234567/" + kManifestFileName, "{}");
  EXPECT_THAT(ChooseCheckpoint(root(), "tiny", Step(30)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/tiny that is complete")));
}

// Damage elsewhere in the folder does not matter.
TEST_F(CheckpointChoiceTest, OnlyManifestsThatAreNeededAreRead) {
  Write(20, 1);
  WriteText(Write(30, 2) + "/" + kManifestFileName, "{}");
  EXPECT_OK(ChooseCheckpoint(root(), "tiny", Step(20)));
  EXPECT_OK(ChooseCheckpoint(root(), "tiny", Folder("step-000000000020-01234567")));
  EXPECT_THAT(ChooseCheckpoint(root(), "tiny", Step(30)), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(ChooseCheckpoint(root(), "tiny", kLatest),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("step-000000000030-01234567")));
}

TEST_F(CheckpointChoiceTest, ACopyOfAnotherModelsIsRefused) {
  Write(20, 1);
  fs::rename(root() + "/tiny", root() + "/other");
  EXPECT_THAT(ChooseCheckpoint(root(), "other", kLatest),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got one of tiny")));
}

TEST_F(CheckpointChoiceTest, AFolderIsAName) {
  Write(20, 1);
  for (const char* const name : {"", ".", "../tiny/step-000000000020-01234567", "step-000000000020-01234567/"}) {
    EXPECT_THAT(ChooseCheckpoint(root(), "tiny", {.kind = CheckpointRequest::Kind::kFolder, .folder = name}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want the name of a checkpoint's folder")))
        << name;
    EXPECT_THAT(FindCheckpoint(root(), "tiny", {.folder = name, .save_id = 77}),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << name;
  }
}

}  // namespace
}  // namespace paramshard::server
