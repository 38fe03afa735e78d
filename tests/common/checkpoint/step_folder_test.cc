#include "common/checkpoint/step_folder.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::uint128 kHistory = absl::MakeUint128(0x0123456789abcdef, 1);

TEST(StepFolderTest, NamesAreReadBack) {
  EXPECT_EQ(StepFolderName(12000, kHistory), "step-000000012000-01234567");
  EXPECT_EQ(TemporaryFolderName(12000, kHistory, 255),
            "step-000000012000-01234567.tmp-000000000000000000000000000000ff");
  const StepName name{.step = 12000, .history_digits = "01234567"};
  EXPECT_EQ(ParseStepFolderName(StepFolderName(12000, kHistory)), name);
  const StepName temporary{.step = 12000, .history_digits = "01234567", .save_id = 255};
  EXPECT_EQ(ParseStepFolderName(TemporaryFolderName(12000, kHistory, 255)), temporary);
  const int64_t large = 123'456'789'012'345;
  EXPECT_EQ(ParseStepFolderName(StepFolderName(large, kHistory))->step, large);
}

TEST(StepFolderTest, OtherNamesAreNone) {
  for (const char* const name :
       {"", "step-", "step--", "step-000000000012", "step-12-01234567", "step-000000000012-0123456",
        "step-000000000012-0123456G", "step-000000000012-01234567.tmp-", "step-000000000012-01234567.tmp-1",
        "step-+00000000012-01234567", "step--00000000012-01234567", "Step-000000000012-01234567",
        "step-000000000012-01234567 ", "step-99999999999999999999-01234567"}) {
    EXPECT_EQ(ParseStepFolderName(name), std::nullopt) << name;
  }
}

TEST(StepFolderTest, ModelsHaveFoldersOfTheirOwn) {
  EXPECT_EQ(ModelFolderName("llama-3.1_8B"), "llama-3.1_8B");
  EXPECT_EQ(ModelFolderName(".."), "%2E.");
  EXPECT_EQ(ModelFolderName("a b%"), "a%20b%25");
  const std::string folder = ModelFolderName(std::string(512, '\xff'));
  EXPECT_LE(folder.size(), 200u);
  EXPECT_NE(folder, ModelFolderName(std::string(511, '\xff')));
}

class StepListTest : public testing::Test {
 protected:
  std::string Write(int64_t step, int64_t serial, absl::uint128 history = kHistory) const {
    return model_.Write(folder(), {.step = step, .save_serial = serial, .history = history});
  }
  std::string folder() const { return root_.path() + "/tiny"; }

 private:
  const test::TemporaryDirectory root_;
  const SavedModel model_{TinySpec(), 1};
};

TEST_F(StepListTest, TheLatestIsThatOfTheLargestSerial) {
  Write(20, 1);
  Write(30, 2);
  const std::string branch = Write(25, 3, ~kHistory);
  fs::create_directory(folder() + "/" + TemporaryFolderName(31, kHistory, 4));
  fs::create_directory(folder() + "/notes");
  ASSERT_OK_AND_ASSIGN(const auto steps, ListSteps(folder()));
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].name.step, 20);
  EXPECT_EQ(steps[2].name.step, 25);
  ASSERT_OK_AND_ASSIGN(const StepEntry latest, LatestStep(folder()));
  EXPECT_EQ(latest.path, branch);
  EXPECT_THAT(ListTemporaryFolders(folder()), IsOkAndHolds(testing::SizeIs(1)));
  EXPECT_THAT(ListStepFolders(folder()),
              IsOkAndHolds(testing::ElementsAre(StepFolderName(20, kHistory), StepFolderName(25, ~kHistory),
                                                StepFolderName(30, kHistory))));
}

TEST_F(StepListTest, OfOneStepTheLastSavedIsFound) {
  Write(20, 1);
  const std::string branch = Write(20, 2, ~kHistory);
  ASSERT_OK_AND_ASSIGN(const StepEntry found, FindStep(folder(), 20));
  EXPECT_EQ(found.path, branch);
  EXPECT_THAT(FindStep(folder(), 21), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no checkpoint of step 21")));
}

TEST_F(StepListTest, BehindADamagedOneNobodyKnowsTheLatest) {
  Write(20, 1);
  const std::string damaged = Write(30, 2);
  WriteText(damaged + "/" + kManifestFileName, "{}");
  EXPECT_THAT(LatestStep(folder()), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("step-000000000030-01234567")));
  EXPECT_OK(FindStep(folder(), 20));
  EXPECT_THAT(LatestStep(folder()), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("may be the latest")));
  fs::remove(damaged + "/" + kManifestFileName);
  EXPECT_THAT(LatestStep(folder()), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(kManifestFileName)));
}

TEST_F(StepListTest, OfAStepThatIsDamagedNothingIsSaidOfTheLatest) {
  WriteText(Write(30, 2) + "/" + kManifestFileName, "{}");
  EXPECT_THAT(FindStep(folder(), 30), StatusIs(absl::StatusCode::kDataLoss,
                                               AllOf(HasSubstr("step-000000000030-01234567"),
                                                     HasSubstr("of step 30 is damaged"), Not(HasSubstr("latest")))));
  Write(30, 1, ~kHistory);
  EXPECT_THAT(FindStep(folder(), 30),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("may be the last checkpoint of step 30")));
}

TEST_F(StepListTest, ErrorsOfManifestsBeginWithTheirPaths) {
  const std::string missing = folder() + "/" + StepFolderName(10, kHistory);
  const std::string damaged = Write(20, 1);
  WriteText(damaged + "/" + kManifestFileName, "{}");
  const std::string large = Write(30, 1);
  fs::resize_file(large + "/" + kManifestFileName, kMaxManifestBytes + 1);
  const std::string other = folder() + "/" + StepFolderName(41, kHistory);
  fs::rename(Write(40, 1), other);
  for (const std::string& path : {missing, damaged, large, other}) {
    const absl::Status status = ReadManifest(path).status();
    EXPECT_THAT(std::string(status.message()), StartsWith(path + "/" + kManifestFileName + ": "));
  }
}

TEST_F(StepListTest, AFolderOfAnotherNameIsDamaged) {
  const std::string path = Write(20, 1);
  fs::rename(path, folder() + "/" + StepFolderName(21, kHistory));
  EXPECT_THAT(LatestStep(folder()), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("step-000000000020-01234567")));
}

TEST_F(StepListTest, NothingThereIsNotFound) {
  EXPECT_THAT(LatestStep(folder()), StatusIs(absl::StatusCode::kNotFound));
  fs::create_directory(folder());
  EXPECT_THAT(LatestStep(folder()), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no checkpoint found")));
}

}  // namespace
}  // namespace paramshard::checkpoint
