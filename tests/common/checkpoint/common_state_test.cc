#include "common/checkpoint/common_state.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/safetensors/header.h"
#include "gmock/gmock.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/support/status_matchers.h"

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
    ASSERT_OK_AND_ASSIGN(const std::vector<std::string> files, SerializeCommonState(model.spec(), state));
    ASSERT_EQ(files.size(), 1u);
    EXPECT_LE(static_cast<int64_t>(files.front().size()), MaxCommonStateBytes(model.spec()));
    EXPECT_THAT(ParseCommonState(model.spec(), files), IsOkAndHolds(testing::Eq(state)));
  }
}

// Returns a model of parameters with delayed scaling: each adds two tensors.
ModelSpec DelayedSpec(int parameters) {
  ModelSpec spec = TinySpec();
  std::vector<ParameterSpec>& all = spec.units.front().parameters;
  while (static_cast<int>(all.size()) < parameters) {
    all.push_back(all.front());
    all.back().name = absl::StrCat("layers.", all.size(), ".\"quoted\".", std::string(100, 'w'));
  }
  return Checked(spec);
}

TEST(CommonStateTest, HeadersThatReadersWouldRefuseAreSplit) {
  constexpr int64_t kMaxHeaderBytes = 20'000;
  const SavedModel model(DelayedSpec(100), 1);
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> files,
                       SerializeCommonState(model.spec(), model.common(), kMaxHeaderBytes));
  ASSERT_GT(files.size(), 2u);
  for (const std::string& file : files) {
    ASSERT_OK_AND_ASSIGN(const int64_t data_begin, safetensors::DataBegin(file.substr(0, safetensors::kLengthBytes)));
    EXPECT_LE(data_begin, kMaxHeaderBytes);
  }
  EXPECT_THAT(ParseCommonState(model.spec(), files), IsOkAndHolds(testing::Eq(model.common())));
  // One file is missing, then one is there twice.
  EXPECT_THAT(ParseCommonState(model.spec(), absl::MakeSpan(files).first(files.size() - 1)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  std::vector<std::string> twice = files;
  twice.push_back(files.back());
  EXPECT_THAT(ParseCommonState(model.spec(), twice),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than one file")));
}

TEST(CommonStateTest, StatesOfOtherModelsAreRefused) {
  const SavedModel model(SpecOfEverything(), 1);
  const SavedModel tiny(TinySpec(), 1);
  EXPECT_THAT(SerializeCommonState(tiny.spec(), model.common()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step_counts")));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> files, SerializeCommonState(model.spec(), model.common()));
  EXPECT_THAT(ParseCommonState(tiny.spec(), files),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tensor step_counts: want I64 [1]")));
}

TEST(CommonStateTest, NumbersThatNoModelHasAreRefused) {
  const SavedModel model(TinySpec(), 1);
  CommonState state = model.common();
  state.version = state.commit_number + 1;
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> files, SerializeCommonState(model.spec(), state));
  EXPECT_THAT(ParseCommonState(model.spec(), files),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tensor numbers: want 0 <= version")));
  state = model.common();
  state.step_counts[0] = -1;
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> steps, SerializeCommonState(model.spec(), state));
  EXPECT_THAT(ParseCommonState(model.spec(), steps),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step_counts: want counts")));
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
