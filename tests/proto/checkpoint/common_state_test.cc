#include "proto/checkpoint/common_state.h"

#include "gmock/gmock.h"
#include "tests/proto/checkpoint/saved_model.h"
#include "tests/status_matchers.h"

namespace paramshard::checkpoint {
namespace {

using ::testing::HasSubstr;

TEST(CommonStateTest, ComesBackAsItWas) {
  const SavedModel model(SpecOfEverything(), 1);
  for (const bool has_answer : {true, false}) {
    CommonState state = model.common();
    if (!has_answer) state.last_answer.reset();
    for (BookEntry& entry : state.book) {
      if (!has_answer) entry.delayed.reset();
    }
    ASSERT_OK_AND_ASSIGN(const std::string bytes, SerializeCommonState(model.spec(), state));
    EXPECT_LE(static_cast<int64_t>(bytes.size()), MaxCommonStateBytes(model.spec()));
    EXPECT_THAT(ParseCommonState(model.spec(), bytes), IsOkAndHolds(testing::Eq(state)));
  }
}

TEST(CommonStateTest, StatesOfOtherModelsAreRefused) {
  const SavedModel model(SpecOfEverything(), 1);
  const SavedModel tiny(TinySpec(), 1);
  EXPECT_THAT(SerializeCommonState(tiny.spec(), model.common()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step_counts")));
  ASSERT_OK_AND_ASSIGN(const std::string bytes, SerializeCommonState(model.spec(), model.common()));
  EXPECT_THAT(ParseCommonState(tiny.spec(), bytes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tensor step_counts: I64 [1] expected")));
}

TEST(CommonStateTest, NumbersThatNoModelHasAreRefused) {
  const SavedModel model(TinySpec(), 1);
  CommonState state = model.common();
  state.version = state.commit_number + 1;
  ASSERT_OK_AND_ASSIGN(const std::string bytes, SerializeCommonState(model.spec(), state));
  EXPECT_THAT(ParseCommonState(model.spec(), bytes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tensor numbers: 0 <= version")));
  state = model.common();
  state.step_counts[0] = -1;
  ASSERT_OK_AND_ASSIGN(const std::string steps, SerializeCommonState(model.spec(), state));
  EXPECT_THAT(ParseCommonState(model.spec(), steps),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step_counts: counts expected")));
}

TEST(CommonStateTest, HistoriesOfAnotherLengthAreRefused) {
  const SavedModel model(TinySpec(), 1);
  CommonState state = model.common();
  state.book[0].delayed->history.push_back(0);
  EXPECT_THAT(SerializeCommonState(model.spec(), state),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("book.history/w")));
}

}  // namespace
}  // namespace paramshard::checkpoint
