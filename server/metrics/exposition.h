// Prometheus' text format, version 0.0.4.
#ifndef PARAMSHARD_SERVER_METRICS_EXPOSITION_H_
#define PARAMSHARD_SERVER_METRICS_EXPOSITION_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/metrics/metric.h"
#include "server/metrics/metric_registry.h"

namespace paramshard::server {

inline constexpr absl::string_view kExpositionContentType = "text/plain; version=0.0.4; charset=utf-8";

// The value of one series that is asked for when the page is made.
struct MetricSample {
  Metric metric;
  std::vector<std::string> labels = {};  // values, in the order of the metric's labels
  double value = 0;
};

// The ranks that the daemon serves.
struct RankCells {
  int first_rank = 0;  // of the world
  int count = 0;
};

// What was observed, and what was asked for, in the order of kMetrics and of labels. A metric without a series is left
// out. Counters go on while they are read: a page is no picture of one moment.
std::string ExpositionText(const MetricRegistry& registry, RankCells ranks, std::vector<MetricSample> samples);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_METRICS_EXPOSITION_H_
