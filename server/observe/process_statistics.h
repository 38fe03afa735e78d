// Kernel statistics of this process.
#ifndef PARAMSHARD_SERVER_OBSERVE_PROCESS_STATISTICS_H_
#define PARAMSHARD_SERVER_OBSERVE_PROCESS_STATISTICS_H_

#include <vector>

#include "server/observe/exposition.h"

namespace paramshard::server {

// Returns metrics `process_...`, as far as /proc has them.
std::vector<MetricSample> ProcessSamples();

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_OBSERVE_PROCESS_STATISTICS_H_
