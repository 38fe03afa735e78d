#include "client/demo/data_set.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/demo/embedded_files.h"
#include "client/demo/gunzip.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard::demo {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// A line of equal pixels and a label.
std::string Line(const std::string& pixel, const std::string& label) {
  return absl::StrCat(absl::StrJoin(std::vector<std::string>(kPixels, pixel), ","), ",", label, "\n");
}

TEST(ParseDigitsTest, PixelsAreScaledToOne) {
  ASSERT_OK_AND_ASSIGN(const DataSet set, ParseDigits(absl::StrCat(Line("16", "3"), Line("4", "9"))));
  EXPECT_THAT(set.labels, ElementsAre(3, 9));
  EXPECT_EQ(set.sample(0)[63], 1.0f);
  EXPECT_EQ(set.sample(1)[0], 0.25f);
}

TEST(ParseDigitsTest, TheLastLineNeedsNoEnd) {
  ASSERT_OK_AND_ASSIGN(const DataSet set, ParseDigits(Line("0", "0") + Line("0", "1").substr(0, 2 * kPixels + 1)));
  EXPECT_EQ(set.size(), 2);
}

TEST(ParseDigitsTest, WrongFieldsAreNamedWithTheirLine) {
  const std::string good = Line("1", "1");
  EXPECT_THAT(ParseDigits(good + Line("17", "1")),
              StatusIs(kInvalid, AllOf(HasSubstr("line 2"), HasSubstr("a pixel"), HasSubstr("17"))));
  EXPECT_THAT(ParseDigits(Line("-1", "1")), StatusIs(kInvalid, HasSubstr("-1")));
  EXPECT_THAT(ParseDigits(Line("x", "1")), StatusIs(kInvalid, HasSubstr("\"x\"")));
  EXPECT_THAT(ParseDigits(Line("1", "10")), StatusIs(kInvalid, AllOf(HasSubstr("line 1"), HasSubstr("a label"))));
  EXPECT_THAT(ParseDigits(Line("1", "")), StatusIs(kInvalid, HasSubstr("a label")));
  EXPECT_THAT(ParseDigits(Line("1", "1,2")), StatusIs(kInvalid, HasSubstr("65 fields, got 66")));
  EXPECT_THAT(ParseDigits("1,2,3"), StatusIs(kInvalid, HasSubstr("got 3")));
  EXPECT_THAT(ParseDigits(Line("99999999999999999999", "1")), StatusIs(kInvalid));
}

TEST(ParseDigitsTest, NoLineIsAnError) {
  EXPECT_THAT(ParseDigits(""), StatusIs(kInvalid, HasSubstr("got none")));
  EXPECT_THAT(ParseDigits("\n\n"), StatusIs(kInvalid));
}

TEST(LoadDigitsTest, AllAreThereAndEveryFifthIsHeldOut) {
  ASSERT_OK_AND_ASSIGN(const DataSet all, LoadDigits());
  EXPECT_EQ(all.size(), 1797);
  EXPECT_EQ(all.labels.front(), 0);
  EXPECT_EQ(all.labels.back(), 8);
  const TrainTest split = Split(all);
  EXPECT_EQ(split.train.size(), 1438);
  EXPECT_EQ(split.test.size(), 359);
  EXPECT_EQ(split.test.labels[0], all.labels[4]);
  EXPECT_EQ(split.test.sample(1), all.sample(9));
  EXPECT_EQ(split.train.sample(4), all.sample(5));
}

TEST(GunzipTest, DamageIsDataLoss) {
  const auto file = absl::MakeConstSpan(kDigitsFile, kDigitsFileBytes);
  EXPECT_THAT(Gunzip(file), IsOk());
  EXPECT_THAT(Gunzip(file.subspan(0, file.size() / 2)), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(Gunzip({}), StatusIs(absl::StatusCode::kDataLoss));
  std::vector<uint8_t> damaged(file.begin(), file.end());
  damaged[damaged.size() / 2] ^= 0x10;
  EXPECT_THAT(Gunzip(damaged), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(Gunzip(std::vector<uint8_t>{'0', ',', '1'}), StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace
}  // namespace paramshard::demo
