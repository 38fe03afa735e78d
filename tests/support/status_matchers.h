// Matchers and assertions on absl::Status and absl::StatusOr.
//
//   EXPECT_THAT(store.Commit(old_epoch), StatusIs(absl::StatusCode::kAborted, HasSubstr("epoch 3")));
//   EXPECT_THAT(layout.RowCount("w"), IsOkAndHolds(Ge(1)));
//   ASSERT_OK(model.Close());
//   ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::Create(spec));

#ifndef PARAMSHARD_TESTS_SUPPORT_STATUS_MATCHERS_H_
#define PARAMSHARD_TESTS_SUPPORT_STATUS_MATCHERS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "kernels/base/status_macros.h"

namespace paramshard {
namespace internal_status_matchers {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }

template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

}  // namespace internal_status_matchers

MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  const absl::Status& status = internal_status_matchers::StatusOf(arg);
  *result_listener << status;
  return status.ok();
}

// A StatusOr whose value matches.
MATCHER_P(IsOkAndHolds, value, negation ? "is not OK, or holds another value" : "is OK and holds the value") {
  if (!arg.ok()) {
    *result_listener << arg.status();
    return false;
  }
  return testing::ExplainMatchResult(value, *arg, result_listener);
}

MATCHER_P(StatusIs, code, testing::DescribeMatcher<absl::StatusCode>(code, negation)) {
  const absl::Status& status = internal_status_matchers::StatusOf(arg);
  *result_listener << status;
  return testing::Matches(testing::MatcherCast<absl::StatusCode>(code))(status.code());
}

// `message` matches a std::string: HasSubstr, ContainsRegex, AllOf ...
MATCHER_P2(StatusIs, code, message,
           testing::DescribeMatcher<absl::StatusCode>(code, negation) + (negation ? " or " : " and a message that ") +
               testing::DescribeMatcher<std::string>(message, negation)) {
  const absl::Status& status = internal_status_matchers::StatusOf(arg);
  *result_listener << status;
  return testing::Matches(testing::MatcherCast<absl::StatusCode>(code))(status.code()) &&
         testing::Matches(testing::MatcherCast<std::string>(message))(std::string(status.message()));
}

}  // namespace paramshard

#define ASSERT_OK(...) ASSERT_THAT((__VA_ARGS__), paramshard::IsOk())
#define EXPECT_OK(...) EXPECT_THAT((__VA_ARGS__), paramshard::IsOk())

// Ends the test unless the expression is OK. It makes more than one statement: it does not stand alone under an `if`.
#define ASSERT_OK_AND_ASSIGN(target, ...) \
  PARAMSHARD_ASSERT_OK_AND_ASSIGN(PARAMSHARD_CONCAT(paramshard_statusor_, __LINE__), target, (__VA_ARGS__))

#define PARAMSHARD_ASSERT_OK_AND_ASSIGN(statusor, target, expression) \
  auto statusor = expression;                                         \
  ASSERT_THAT(statusor, paramshard::IsOk());                          \
  target = *std::move(statusor)

#endif  // PARAMSHARD_TESTS_SUPPORT_STATUS_MATCHERS_H_
