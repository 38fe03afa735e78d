#include "server/observe/metric_registry.h"

#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

int SeriesOf(Metric metric) { return server::SeriesOf(TraitsOf(metric)); }

TEST(MetricRegistryTest, ACounterCountsItsSeriesAlone) {
  MetricRegistry registry;
  registry.Add(Metric::kEpochsStarted);
  registry.Add(Metric::kCommits, CommitResult::kInDoubt);
  registry.Add(Metric::kCommits, CommitResult::kInDoubt, 2);
  for (const MetricTraits& traits : kMetrics) {
    if (traits.source != MetricSource::kObserved || traits.type != MetricType::kCounter) continue;
    for (int series = 0; series < server::SeriesOf(traits); ++series) {
      int64_t expected = traits.metric == Metric::kEpochsStarted ? 1 : 0;
      if (traits.metric == Metric::kCommits && series == static_cast<int>(CommitResult::kInDoubt)) expected = 3;
      EXPECT_EQ(registry.count(traits.metric, series), expected) << traits.name << ", series " << series;
    }
  }
}

TEST(MetricRegistryTest, MovedBytesHaveASeriesForEachEngineAndDirection) {
  MetricRegistry registry;
  registry.AddMoved(MovedBy::kGloo, MoveDirection::kReceived, 5);
  registry.AddMoved(MovedBy::kNccl, MoveDirection::kSent, 7);
  std::vector<int64_t> counts;
  for (int series = 0; series < SeriesOf(Metric::kMovedBytes); ++series) {
    counts.push_back(registry.count(Metric::kMovedBytes, series));
  }
  EXPECT_EQ(counts, (std::vector<int64_t>{0, 0, 0, 0, 0, 5, 7, 0}));
}

TEST(MetricRegistryTest, EndsAreCountedByTheirCode) {
  MetricRegistry registry;
  registry.AddEpochEnd(absl::OkStatus());
  registry.AddEpochEnd(absl::UnauthenticatedError(""));
  EXPECT_EQ(registry.count(Metric::kEpochsEnded, 0), 1);
  EXPECT_EQ(registry.count(Metric::kEpochsEnded, 16), 1);

  registry.AddRpcEnd(absl::OkStatus());
  registry.AddRpcEnd(absl::CancelledError(""));
  registry.AddRpcEnd(absl::Status(static_cast<absl::StatusCode>(99), "a code of the future"));
  EXPECT_EQ(registry.count(Metric::kRpcFailures, 0), 1);
  EXPECT_EQ(registry.count(Metric::kRpcFailures, 1), 1) << "as UNKNOWN";
}

TEST(MetricRegistryTest, LabelsAreNamedAsAbseilAndTheLogNameThem) {
  for (int code = 1; code < kStatusCodes; ++code) {
    EXPECT_EQ(kEpochEnds[code], absl::StatusCodeToString(static_cast<absl::StatusCode>(code)));
  }
  EXPECT_EQ(kLogLevels[static_cast<int>(LogLevel::kDebug)], "debug");
  EXPECT_EQ(kLogLevels[static_cast<int>(LogLevel::kError)], "error");
}

TEST(MetricRegistryTest, ABucketHoldsItsUpperBound) {
  MetricRegistry registry;
  registry.Observe(Metric::kGather, nanoseconds(10'000));  // the first bound
  registry.Observe(Metric::kGather, nanoseconds(10'001));
  registry.Observe(Metric::kGather, seconds(31));  // beyond the last
  const int last = static_cast<int>(TraitsOf(Metric::kGather).upper_bounds_seconds.size());
  for (int bucket = 0; bucket <= last; ++bucket) {
    EXPECT_EQ(registry.bucket(Metric::kGather, 0, bucket), bucket <= 1 || bucket == last ? 1 : 0) << bucket;
  }
  EXPECT_EQ(registry.sum_nanoseconds(Metric::kGather, 0), 31'000'020'001);
}

TEST(MetricRegistryTest, HistogramsOfPhasesDoNotMix) {
  MetricRegistry registry;
  registry.Observe(Metric::kCommitPhase, CommitPhase::kAnswer, milliseconds(2));
  for (int phase = 0; phase < SeriesOf(Metric::kCommitPhase); ++phase) {
    const bool is_answer = phase == static_cast<int>(CommitPhase::kAnswer);
    EXPECT_EQ(registry.sum_nanoseconds(Metric::kCommitPhase, phase), is_answer ? 2'000'000 : 0);
  }
}

TEST(MetricRegistryTest, RanksBeyondTheCellsAreLeftOut) {
  MetricRegistry registry;
  registry.AddRankWait(kMostRankCells - 1, seconds(1));
  registry.AddRankWait(kMostRankCells, seconds(1));
  registry.AddRankWait(1'000'000, seconds(1));
  EXPECT_EQ(registry.count(Metric::kRankWait, kMostRankCells - 1), 1'000'000'000);
}

TEST(MetricRegistryTest, ATimerObservesOnce) {
  MetricRegistry registry;
  { const MetricTimer timer(registry, Metric::kCommitPhase, CommitPhase::kVote); }
  int64_t count = 0;
  for (int bucket = 0; bucket < CellsOf(TraitsOf(Metric::kCommitPhase)) - 1; ++bucket) {
    count += registry.bucket(Metric::kCommitPhase, static_cast<int>(CommitPhase::kVote), bucket);
  }
  EXPECT_EQ(count, 1);
}

TEST(MetricRegistryTest, NoObservationOfSeveralThreadsIsLost) {
  constexpr int kThreads = 4;
  constexpr int kTimes = 10'000;
  MetricRegistry registry;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&registry] {
      for (int j = 0; j < kTimes; ++j) {
        registry.Add(Metric::kEpochsStarted);
        registry.Observe(Metric::kPush, nanoseconds(1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.count(Metric::kEpochsStarted, 0), kThreads * kTimes);
  EXPECT_EQ(registry.bucket(Metric::kPush, 0, 0), kThreads * kTimes);
  EXPECT_EQ(registry.sum_nanoseconds(Metric::kPush, 0), kThreads * kTimes);
}

bool IsLabelName(absl::string_view name) {
  for (const char c : name) {
    if (!absl::ascii_islower(static_cast<unsigned char>(c)) && c != '_') return false;
  }
  return name != "le" && !name.empty();
}

TEST(MetricTableTest, NamesFollowTheRulesOfPrometheus) {
  std::set<absl::string_view> names;
  for (const MetricTraits& traits : kMetrics) {
    EXPECT_TRUE(absl::StartsWith(traits.name, "paramshard_") || absl::StartsWith(traits.name, "process_"))
        << traits.name;
    EXPECT_TRUE(names.insert(traits.name).second) << traits.name << " twice";
    EXPECT_EQ(absl::EndsWith(traits.name, "_total"), traits.type == MetricType::kCounter) << traits.name;
    if (!traits.unit.empty()) {
      EXPECT_TRUE(absl::StrContains(traits.name, absl::StrCat("_", traits.unit))) << traits.name;
    }
    EXPECT_TRUE(absl::EndsWith(traits.help, ".")) << traits.name << ": a sentence expected, got " << traits.help;
    EXPECT_EQ(traits.upper_bounds_seconds.empty(), traits.type != MetricType::kHistogram) << traits.name;
    for (const MetricLabel& label : traits.labels) {
      if (label.name.empty()) continue;
      EXPECT_TRUE(IsLabelName(label.name)) << traits.name << ": " << label.name;
      EXPECT_TRUE(traits.source == MetricSource::kAsked || !label.values.empty()) << traits.name;
    }
  }
}

TEST(MetricTableTest, BoundsOfBucketsAscend) {
  for (const MetricTraits& traits : kMetrics) {
    const absl::Span<const double> bounds = traits.upper_bounds_seconds;
    for (size_t i = 1; i < bounds.size(); ++i) EXPECT_LT(bounds[i - 1], bounds[i]) << traits.name;
  }
}

}  // namespace
}  // namespace paramshard::server
