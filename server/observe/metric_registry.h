// Counters and histograms of a daemon.
#ifndef PARAMSHARD_SERVER_OBSERVE_METRIC_REGISTRY_H_
#define PARAMSHARD_SERVER_OBSERVE_METRIC_REGISTRY_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "server/base/steady_time.h"
#include "server/observe/metric.h"

namespace paramshard::server {

// The observed metrics of kMetrics, as relaxed atomics: an observation takes no lock, allocates nothing and orders
// nothing. Each daemon owns one. Thread-safe.
//
//   registry.Add(Metric::kEpochsStarted);
//   registry.Add(Metric::kCommits, CommitResult::kApplied);
//   registry.Observe(Metric::kCommitPhase, CommitPhase::kVote, SteadyNow() - begin);
class MetricRegistry {
 public:
  using Duration = SteadyTime::duration;

  // Returns a registry that is never read, for objects without a daemon.
  static MetricRegistry& Unread() {
    static MetricRegistry registry;
    return registry;
  }

  // Increments a counter; counters of seconds count nanoseconds.
  void Add(Metric metric) { Cell(metric, 0).fetch_add(1, std::memory_order_relaxed); }
  template <typename Value>
  void Add(Metric metric, Value value, int64_t count = 1) {
    Cell(metric, static_cast<int>(value)).fetch_add(count, std::memory_order_relaxed);
  }
  void AddMoved(MovedBy engine, MoveDirection direction, int64_t size_bytes) {
    constexpr int kPerEngine = sizeof(kDirections) / sizeof(kDirections[0]);
    Add(Metric::kMovedBytes, static_cast<int>(engine) * kPerEngine + static_cast<int>(direction), size_bytes);
  }
  // `rank` is the daemon's own, from 0; ranks from kMostRankCells on are not counted.
  void AddRankWait(int rank, Duration wait) {
    if (rank < kMostRankCells) Add(Metric::kRankWait, rank, Nanoseconds(wait));
  }
  // An epoch has ended; OK: all trainers have detached.
  void AddEpochEnd(const absl::Status& why) { Add(Metric::kEpochsEnded, Known(why.code())); }
  // A call has ended. Only errors are counted.
  void AddRpcEnd(const absl::Status& status) {
    if (!status.ok()) Add(Metric::kRpcFailures, Known(status.code()) - 1);
  }

  // Adds a duration to a histogram.
  void Observe(Metric metric, Duration took) { ObserveIn(metric, 0, took); }
  template <typename Value>
  void Observe(Metric metric, Value value, Duration took) {
    ObserveIn(metric, static_cast<int>(value), took);
  }

  // Value of a counter's series.
  int64_t count(Metric metric, int series) const { return Cell(metric, series).load(std::memory_order_relaxed); }
  // Count of a histogram's bucket, and the sum of all its durations in nanoseconds.
  int64_t bucket(Metric metric, int series, int bucket) const {
    return Cell(metric, series, bucket).load(std::memory_order_relaxed);
  }
  int64_t sum_nanoseconds(Metric metric, int series) const {
    return Cell(metric, series, CellsOf(TraitsOf(metric)) - 1).load(std::memory_order_relaxed);
  }

 private:
  static int64_t Nanoseconds(Duration duration) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
  }
  // Maps codes unknown to Abseil to UNKNOWN.
  static int Known(absl::StatusCode code) {
    const int number = static_cast<int>(code);
    return number >= 0 && number < kStatusCodes ? number : static_cast<int>(absl::StatusCode::kUnknown);
  }

  void ObserveIn(Metric metric, int series, Duration took);

  std::atomic<int64_t>& Cell(Metric metric, int series, int cell = 0) { return cells_[Index(metric, series, cell)]; }
  const std::atomic<int64_t>& Cell(Metric metric, int series, int cell = 0) const {
    return cells_[Index(metric, series, cell)];
  }
  static int Index(Metric metric, int series, int cell) {
    const int index = kMetricCells[static_cast<int>(metric)] + series * CellsOf(TraitsOf(metric)) + cell;
    PARAMSHARD_CHECK(series >= 0 && index < kMetricCells[static_cast<int>(metric) + 1]);
    return index;
  }

  std::array<std::atomic<int64_t>, kMetricCells[kMetricCount]> cells_ = {};
};

// Observes its own lifetime.
//
//   const MetricTimer timer(registry, Metric::kPush);
class MetricTimer {
 public:
  MetricTimer(MetricRegistry& registry, Metric metric) : MetricTimer(registry, metric, 0) {}
  template <typename Value>
  MetricTimer(MetricRegistry& registry, Metric metric, Value value)
      : registry_(registry), metric_(metric), series_(static_cast<int>(value)), begin_(SteadyNow()) {}
  MetricTimer(const MetricTimer&) = delete;
  MetricTimer& operator=(const MetricTimer&) = delete;
  ~MetricTimer() { registry_.Observe(metric_, series_, SteadyNow() - begin_); }

 private:
  MetricRegistry& registry_;
  const Metric metric_;
  const int series_;
  const SteadyTime begin_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_OBSERVE_METRIC_REGISTRY_H_
