// Metrics in Prometheus' text format, version 0.0.4.
#ifndef PARAMSHARD_SERVER_OBSERVE_EXPOSITION_H_
#define PARAMSHARD_SERVER_OBSERVE_EXPOSITION_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/observe/metric.h"
#include "server/observe/metric_registry.h"

namespace paramshard::server {

inline constexpr absl::string_view kExpositionContentType = "text/plain; version=0.0.4; charset=utf-8";

// Value of a series that is queried when the page is made.
struct MetricSample {
  Metric metric;
  std::vector<std::string> labels = {};  // values, in the order of the metric's labels
  double value = 0;
};

// Ranks of the daemon.
struct RankCells {
  int first_rank = 0;  // of the world
  int count = 0;
};

// Returns observed and queried metrics, in the order of kMetrics and of labels, without metrics that have no series.
// Counters advance while they are read, so a page is no consistent snapshot.
std::string ExpositionText(const MetricRegistry& registry, RankCells ranks, std::vector<MetricSample> samples);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_OBSERVE_EXPOSITION_H_
