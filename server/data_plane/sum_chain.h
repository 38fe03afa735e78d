// Sums of more sources than a device adds at a time.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_SUM_CHAIN_H_
#define PARAMSHARD_SERVER_DATA_PLANE_SUM_CHAIN_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/device/compute_device.h"

namespace paramshard::server {

// Makes the sums with at most `most` sources of each at a time, in order, with the same bits as one sum over all.
// Requires most >= 1 and sums that overwrite float32, which hold partial sums meanwhile. Errors of the queue.
absl::Status SumInChain(DeviceQueue& queue, absl::Span<const SumTask> sums, int most);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_SUM_CHAIN_H_
