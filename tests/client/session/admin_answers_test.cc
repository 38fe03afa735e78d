#include "client/internal/admin_answers.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/model/save_state_proto.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::Save SaveIn(v1::SaveState state) {
  v1::Save save;
  save.set_model("m");
  save.set_state(state);
  save.set_reason(v1::SAVE_REASON_TIME);
  return save;
}

TEST(AdminAnswersTest, EveryStateOfASaveIsKnown) {
  for (int number = 1; number <= v1::SaveState_MAX; ++number) {
    ASSERT_OK_AND_ASSIGN(const SaveRecord record, SaveFromProto(SaveIn(static_cast<v1::SaveState>(number))));
    EXPECT_EQ(static_cast<int>(record.state), number);
    EXPECT_EQ(record.is_over(), number >= v1::SAVE_STATE_PUBLISHED);
    EXPECT_EQ(record.is_saved(), number == v1::SAVE_STATE_PUBLISHED || number == v1::SAVE_STATE_ALREADY_SAVED);
    EXPECT_EQ(record.reason, SaveReason::kTime);
    EXPECT_OK(record.error);
  }
}

// Python and tables of paramshardctl show these names, JSON shows the messages' own.
TEST(AdminAnswersTest, StatesAndReasonsAreNamedAsInMessages) {
  for (const auto& [state, name] : kSaveStates) {
    EXPECT_EQ(absl::StrCat("SAVE_STATE_", absl::AsciiStrToUpper(name)), v1::SaveState_Name(SaveStateToProto(state)));
    EXPECT_STREQ(SaveStateName(state), name);
  }
  for (const auto& [reason, name] : kSaveReasons) {
    EXPECT_EQ(absl::StrCat("SAVE_REASON_", absl::AsciiStrToUpper(name)),
              v1::SaveReason_Name(SaveReasonToProto(reason)));
    EXPECT_STREQ(SaveReasonName(reason), name);
  }
}

TEST(AdminAnswersTest, AStateOfANewerDaemonIsAnError) {
  const auto is_named = StatusIs(absl::StatusCode::kInternal,
                                 AllOf(HasSubstr("save m"), HasSubstr("daemon and client library may differ")));
  EXPECT_THAT(SaveFromProto(SaveIn(static_cast<v1::SaveState>(v1::SaveState_MAX + 1))), is_named);
  EXPECT_THAT(SaveFromProto(SaveIn(v1::SAVE_STATE_UNSPECIFIED)), is_named);
  v1::Save save = SaveIn(v1::SAVE_STATE_WRITING);
  save.set_reason(v1::SAVE_REASON_UNSPECIFIED);
  EXPECT_THAT(SaveFromProto(save), is_named);
  v1::ListSavesResponse response;
  *response.add_saves() = save;
  EXPECT_THAT(SavesFromProto(response), is_named);
}

TEST(AdminAnswersTest, WhyASaveCameToNothingIsAStatus) {
  v1::Save save = SaveIn(v1::SAVE_STATE_ABANDONED);
  save.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  save.mutable_error()->set_text("the disk is full");
  save.mutable_took()->set_seconds(3);
  save.mutable_begun_at()->set_seconds(5);
  save.mutable_begun_at()->set_nanos(7);
  ASSERT_OK_AND_ASSIGN(const SaveRecord record, SaveFromProto(save));
  EXPECT_THAT(record.error, StatusIs(absl::StatusCode::kResourceExhausted, "the disk is full"));
  EXPECT_EQ(record.took, absl::Seconds(3));
  EXPECT_EQ(record.begun_at, absl::FromUnixNanos(5'000'000'007));
}

TEST(AdminAnswersTest, AModelThatWasLostHasANameAndAReason) {
  v1::ListModelsResponse response;
  response.add_models()->set_name("lost");
  response.mutable_models(0)->set_unusable("its state was lost");
  response.add_models()->set_name("there");
  response.mutable_models(1)->set_epoch(0);
  const std::vector<ModelSummary> models = ModelsFromProto(response);
  ASSERT_THAT(models,
              ElementsAre(testing::Field(&ModelSummary::name, "lost"), testing::Field(&ModelSummary::name, "there")));
  EXPECT_EQ(models[0].unusable, "its state was lost");
  EXPECT_EQ(models[0].epoch, std::nullopt);
  EXPECT_EQ(models[1].epoch, 0);
}

}  // namespace
}  // namespace paramshard::internal
