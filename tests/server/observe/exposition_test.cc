#include "server/observe/exposition.h"

#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// The lines of one metric.
std::vector<std::string> Lines(const std::string& page, absl::string_view name) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (absl::StartsWith(line, name) || absl::StrContains(line, absl::StrCat(" ", name, " "))) lines.emplace_back(line);
  }
  return lines;
}

TEST(ExpositionTest, ACounterHasALineForEachSeries) {
  MetricRegistry registry;
  registry.Add(Metric::kCommits, CommitResult::kApplied, 12'345'678'901);
  EXPECT_THAT(
      Lines(ExpositionText(registry, {}, {}), "paramshard_commits_total"),
      ElementsAre("# HELP paramshard_commits_total Commits by result.", "# TYPE paramshard_commits_total counter",
                  "paramshard_commits_total{result=\"applied\"} 12345678901",
                  "paramshard_commits_total{result=\"skipped\"} 0", "paramshard_commits_total{result=\"given_up\"} 0",
                  "paramshard_commits_total{result=\"in_doubt\"} 0", "paramshard_commits_total{result=\"failed\"} 0"));
}

TEST(ExpositionTest, AHistogramCountsWhatIsAtMostEachBound) {
  MetricRegistry registry;
  registry.Observe(Metric::kSave, std::chrono::milliseconds(200));
  registry.Observe(Metric::kSave, std::chrono::milliseconds(2'000));
  registry.Observe(Metric::kSave, std::chrono::hours(1));
  EXPECT_THAT(
      Lines(ExpositionText(registry, {}, {}), "paramshard_save_seconds"),
      ElementsAre("# HELP paramshard_save_seconds Duration of published saves.",
                  "# TYPE paramshard_save_seconds histogram", "paramshard_save_seconds_bucket{le=\"0.1\"} 0",
                  "paramshard_save_seconds_bucket{le=\"0.3\"} 1", "paramshard_save_seconds_bucket{le=\"1\"} 1",
                  "paramshard_save_seconds_bucket{le=\"3\"} 2", "paramshard_save_seconds_bucket{le=\"10\"} 2",
                  "paramshard_save_seconds_bucket{le=\"30\"} 2", "paramshard_save_seconds_bucket{le=\"60\"} 2",
                  "paramshard_save_seconds_bucket{le=\"120\"} 2", "paramshard_save_seconds_bucket{le=\"300\"} 2",
                  "paramshard_save_seconds_bucket{le=\"600\"} 2", "paramshard_save_seconds_bucket{le=\"1800\"} 2",
                  "paramshard_save_seconds_bucket{le=\"+Inf\"} 3", "paramshard_save_seconds_sum 3602.2",
                  "paramshard_save_seconds_count 3"));
}

TEST(ExpositionTest, BoundsComeBehindTheOtherLabels) {
  MetricRegistry registry;
  registry.Observe(Metric::kCommitPhase, CommitPhase::kVote, std::chrono::microseconds(20));
  const std::string page = ExpositionText(registry, {}, {});
  EXPECT_THAT(page, HasSubstr("paramshard_commit_phase_seconds_bucket{phase=\"vote\",le=\"3e-05\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("paramshard_commit_phase_seconds_sum{phase=\"vote\"} 2e-05\n"));
}

TEST(ExpositionTest, RanksAreThoseOfTheWorld) {
  MetricRegistry registry;
  registry.AddRankWait(1, std::chrono::milliseconds(1'500));
  const std::vector<std::string> lines =
      Lines(ExpositionText(registry, {.first_rank = 4, .count = 2}, {}), "paramshard_rank_wait_seconds_total");
  EXPECT_THAT(std::vector<std::string>(lines.begin() + 2, lines.end()),
              ElementsAre("paramshard_rank_wait_seconds_total{rank=\"4\"} 0",
                          "paramshard_rank_wait_seconds_total{rank=\"5\"} 1.5"));
  EXPECT_THAT(ExpositionText(registry, {}, {}), Not(HasSubstr("rank_wait")));
}

TEST(ExpositionTest, WhatIsAskedForIsInOrderWhateverTheOrderOfSamples) {
  const std::vector<MetricSample> samples = {{Metric::kSessions, {"b"}, 2},
                                             {Metric::kDeviceHealthy, {"cpu:0"}, 1},
                                             {Metric::kSessions, {"a"}, 1},
                                             {Metric::kMemoryBytes, {"host", "words"}, 4096}};
  const MetricRegistry registry;
  const std::string page = ExpositionText(registry, {}, samples);
  EXPECT_EQ(page, ExpositionText(registry, {}, {samples.rbegin(), samples.rend()}));
  EXPECT_THAT(Lines(page, "paramshard_sessions"),
              ElementsAre("# HELP paramshard_sessions Trainers attached to the model on this daemon.",
                          "# TYPE paramshard_sessions gauge", "paramshard_sessions{model=\"a\"} 1",
                          "paramshard_sessions{model=\"b\"} 2"));
  EXPECT_THAT(page, HasSubstr("paramshard_memory_bytes{device=\"host\",class=\"words\"} 4096\n"));
  EXPECT_LT(page.find("paramshard_device_healthy"), page.find("paramshard_memory_bytes"));
  EXPECT_LT(page.find("paramshard_memory_bytes"), page.find("paramshard_sessions"));
}

TEST(ExpositionTest, AMetricWithoutASeriesIsLeftOut) {
  EXPECT_THAT(ExpositionText(MetricRegistry(), {}, {}), Not(HasSubstr("paramshard_tls_not_after_timestamp_seconds")));
}

TEST(ExpositionTest, ValuesOfLabelsAreEscaped) {
  const std::string page = ExpositionText(MetricRegistry(), {}, {{Metric::kSessions, {"a\"b\\c\nd"}, 1}});
  EXPECT_THAT(page, HasSubstr("paramshard_sessions{model=\"a\\\"b\\\\c\\nd\"} 1\n"));
}

TEST(ExpositionTest, NumbersAreReadAsTheyWere) {
  const auto text = [](double value) {
    const std::string page = ExpositionText(MetricRegistry(), {}, {{Metric::kLastCommitTimestamp, {"m"}, value}});
    const std::string line = Lines(page, "paramshard_last_commit_timestamp_seconds").back();
    return line.substr(line.rfind(' ') + 1);
  };
  EXPECT_EQ(text(1795746000.123), "1795746000.123");
  EXPECT_EQ(text(0), "0");
  EXPECT_EQ(text(-1.5), "-1.5");
  EXPECT_EQ(std::stod(text(0.1 + 0.2)), 0.1 + 0.2);
  EXPECT_EQ(text(std::numeric_limits<double>::infinity()), "+Inf");
  EXPECT_EQ(text(std::numeric_limits<double>::quiet_NaN()), "NaN");
}

}  // namespace
}  // namespace paramshard::server
