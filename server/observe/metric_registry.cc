#include "server/observe/metric_registry.h"

#include <algorithm>

namespace paramshard::server {

// A bucket counts durations of at most its bound and above the previous bound.
void MetricRegistry::ObserveIn(Metric metric, int series, Duration took) {
  const absl::Span<const double> bounds = TraitsOf(metric).upper_bounds_seconds;
  const double seconds = std::chrono::duration<double>(took).count();
  const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), seconds) - bounds.begin();
  Cell(metric, series, static_cast<int>(bucket)).fetch_add(1, std::memory_order_relaxed);
  Cell(metric, series, CellsOf(TraitsOf(metric)) - 1).fetch_add(Nanoseconds(took), std::memory_order_relaxed);
}

}  // namespace paramshard::server
