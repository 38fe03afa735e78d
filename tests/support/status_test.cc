// The macros of kernels/base/status_macros.h and the matchers of tests/support/status_matchers.h.

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::AnyOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointee;

absl::Status Missing() { return absl::NotFoundError("parameter w: not in the model"); }

template <typename T, typename U>
absl::StatusOr<T> Convert(U value) {
  if (value < 0) return absl::InvalidArgumentError("negative");
  return T(value);
}

absl::Status CheckBoth(const absl::Status& first, const absl::Status& second) {
  RETURN_IF_ERROR(first);
  RETURN_IF_ERROR(second);
  return absl::OkStatus();
}

absl::StatusOr<std::string> NameUnless(const absl::Status& status) {
  RETURN_IF_ERROR(status);
  return "name";
}

absl::StatusOr<int> Sum(int a, int b) {
  ASSIGN_OR_RETURN(int sum, Convert<int, int>(a));
  ASSIGN_OR_RETURN(const auto addend, (Convert<int, int>(b)));
  return sum + addend;
}

absl::StatusOr<std::unique_ptr<int>> MakeCell(int value) {
  std::unique_ptr<int> cell;
  ASSIGN_OR_RETURN(cell, absl::StatusOr<std::unique_ptr<int>>(std::make_unique<int>(value)));
  return cell;
}

TEST(StatusMacrosTest, FirstErrorLeavesTheFunction) {
  EXPECT_OK(CheckBoth(absl::OkStatus(), absl::OkStatus()));
  EXPECT_EQ(CheckBoth(Missing(), absl::InternalError("second")), Missing());
  EXPECT_EQ(CheckBoth(absl::OkStatus(), Missing()), Missing());
}

TEST(StatusMacrosTest, ErrorBecomesStatusOr) {
  EXPECT_THAT(NameUnless(absl::OkStatus()), IsOkAndHolds("name"));
  EXPECT_EQ(NameUnless(Missing()).status(), Missing());
}

TEST(StatusMacrosTest, ValuesAreAssigned) {
  EXPECT_THAT(Sum(2, 3), IsOkAndHolds(5));
  EXPECT_THAT(Sum(2, -3), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(MakeCell(7), IsOkAndHolds(Pointee(7)));
}

TEST(StatusMatchersTest, OkIsToldFromErrors) {
  EXPECT_THAT(absl::OkStatus(), IsOk());
  EXPECT_THAT(absl::StatusOr<int>(1), IsOk());
  EXPECT_THAT(Missing(), Not(IsOk()));
  EXPECT_THAT(absl::StatusOr<int>(Missing()), Not(IsOk()));
}

TEST(StatusMatchersTest, ValuesAreMatched) {
  EXPECT_THAT(absl::StatusOr<int>(4), IsOkAndHolds(Ge(3)));
  EXPECT_THAT(absl::StatusOr<int>(2), Not(IsOkAndHolds(Ge(3))));
  EXPECT_THAT(absl::StatusOr<int>(Missing()), Not(IsOkAndHolds(Ge(3))));
}

TEST(StatusMatchersTest, CodesAndMessagesAreMatched) {
  EXPECT_THAT(Missing(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Missing(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("parameter w")));
  EXPECT_THAT(Missing(), StatusIs(AnyOf(absl::StatusCode::kNotFound, absl::StatusCode::kAborted)));
  EXPECT_THAT(Missing(), Not(StatusIs(absl::StatusCode::kAborted, HasSubstr("parameter w"))));
  EXPECT_THAT(Missing(), Not(StatusIs(absl::StatusCode::kNotFound, HasSubstr("parameter b"))));
  EXPECT_THAT(absl::StatusOr<int>(Missing()), StatusIs(absl::StatusCode::kNotFound, HasSubstr("model")));
}

TEST(StatusMatchersTest, FailuresShowTheStatus) {
  EXPECT_NONFATAL_FAILURE(EXPECT_OK(Missing()), "NOT_FOUND: parameter w");
  EXPECT_NONFATAL_FAILURE(EXPECT_THAT(Missing(), StatusIs(absl::StatusCode::kAborted, HasSubstr("epoch"))),
                          "has substring \"epoch\"");
}

TEST(StatusMatchersTest, ValuesAreAssigned) {
  using Shapes = std::map<std::string, int>;
  ASSERT_OK_AND_ASSIGN(const auto shapes, (absl::StatusOr<Shapes>(Shapes{{"w", 2}, {"b", 1}})));
  EXPECT_EQ(shapes.at("w"), 2);
}

}  // namespace
}  // namespace paramshard
