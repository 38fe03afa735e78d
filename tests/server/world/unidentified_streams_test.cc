#include "server/world/unidentified_streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

TEST(UnidentifiedStreamsTest, ACallerHasFewAndOthersHaveTheirs) {
  UnidentifiedStreams streams({.most = 2, .timeout = absl::Hours(1)});
  auto first = std::make_optional(*streams.Take("a", [] {}));
  const auto second = streams.Take("a", [] {});
  ASSERT_OK(second.status());
  EXPECT_THAT(streams.Take("a", [] {}).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::HasSubstr("from a, got more")));
  EXPECT_OK(streams.Take("b", [] {}).status());
  first.reset();
  EXPECT_OK(streams.Take("a", [] {}).status());
}

TEST(UnidentifiedStreamsTest, TheOldestGivesWayWhenItHasHadItsTime) {
  UnidentifiedStreams streams({.most = 2, .timeout = absl::ZeroDuration()});
  std::vector<int> ended;
  std::vector<UnidentifiedStreams::Place> places;
  for (int i = 0; i < 4; ++i) {
    absl::StatusOr<UnidentifiedStreams::Place> place = streams.Take("a", [&ended, i] { ended.push_back(i); });
    ASSERT_OK(place.status());
    places.push_back(*std::move(place));
  }
  EXPECT_THAT(ended, testing::ElementsAre(0, 1));
}

}  // namespace
}  // namespace paramshard::server
