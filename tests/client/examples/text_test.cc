#include "client/examples/text.h"

#include <string>

#include "gmock/gmock.h"
#include "tests/status_matchers.h"

namespace paramshard::examples {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TextTest, LabelsAreTheCharactersOnePlaceFurther) {
  const Text text({10, 11, 12, 13, 14, 15, 16}, 3);
  ASSERT_EQ(text.size(), 2);
  EXPECT_THAT(text.sample(0), ElementsAre(10, 11, 12));
  EXPECT_THAT(text.labels(0), ElementsAre(11, 12, 13));
  EXPECT_THAT(text.labels(1), ElementsAre(14, 15, 16));
}

TEST(TextTest, AWindowNeedsACharacterAfterIt) {
  EXPECT_EQ(Text({1, 2, 3}, 3).size(), 0);
  EXPECT_EQ(Text({1, 2, 3, 4}, 3).size(), 1);
  EXPECT_EQ(Text({}, 3).size(), 0);
}

TEST(SplitTextTest, TheEndIsHeldOut) {
  const std::string text = std::string(1000, 'a') + std::string(16 * 1024 + 1, 'b');
  ASSERT_OK_AND_ASSIGN(const TextSplit split, SplitText(text, 64));
  EXPECT_EQ(split.train.size(), 15);
  EXPECT_EQ(split.held_out.size(), 256);
  EXPECT_EQ(split.train.labels(14).back(), 'a');
  EXPECT_EQ(split.held_out.sample(0).front(), 'b');
}

TEST(SplitTextTest, WhatIsNoTextIsRefused) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(SplitText("abc\xc3\xa9", 64), StatusIs(kInvalid, AllOf(HasSubstr("195"), HasSubstr("offset 3"))));
  EXPECT_THAT(SplitText("", 64), StatusIs(kInvalid, HasSubstr("got 0")));
  EXPECT_THAT(SplitText(std::string(16 * 1024, ' '), 64), StatusIs(kInvalid, HasSubstr("characters, got 16384")));
}

TEST(LoadTextTest, TheNovelIsThere) {
  ASSERT_OK_AND_ASSIGN(const TextSplit split, LoadText(64));
  EXPECT_EQ(split.train.size(), 7038);
  EXPECT_EQ(split.held_out.size(), 256);
  EXPECT_EQ(split.train.sample(0)[0], 'P');
}

}  // namespace
}  // namespace paramshard::examples
