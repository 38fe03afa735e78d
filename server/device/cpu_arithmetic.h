// The arithmetic of a shard in host memory.
#ifndef PARAMSHARD_SERVER_DEVICE_CPU_ARITHMETIC_H_
#define PARAMSHARD_SERVER_DEVICE_CPU_ARITHMETIC_H_

#include <memory>
#include <vector>

#include "server/device/compute_device.h"

namespace paramshard::server {

std::unique_ptr<ShardArithmetic> MakeCpuArithmetic(std::vector<ExtentTensors> tensors, StateMoves moves);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_CPU_ARITHMETIC_H_
