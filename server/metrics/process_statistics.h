// What the kernel says of this process.
#ifndef PARAMSHARD_SERVER_METRICS_PROCESS_STATISTICS_H_
#define PARAMSHARD_SERVER_METRICS_PROCESS_STATISTICS_H_

#include <vector>

#include "server/metrics/exposition.h"

namespace paramshard::server {

// Metrics `process_...`; those that /proc does not tell are left out.
std::vector<MetricSample> ProcessSamples();

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_METRICS_PROCESS_STATISTICS_H_
