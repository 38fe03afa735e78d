// Kernels of trainers that misbehave.
#ifndef PARAMSHARD_TESTS_FAULTS_BAD_ACCESS_H_
#define PARAMSHARD_TESTS_FAULTS_BAD_ACCESS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

namespace paramshard::test {

// Enqueues a kernel that writes to `count` floats again and again for so long.
absl::Status KeepWriting(float* values, int64_t count, double seconds, cudaStream_t stream);

// Enqueues a kernel that writes to an address that nothing is mapped at.
absl::Status WriteToNowhere(cudaStream_t stream);

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_FAULTS_BAD_ACCESS_H_
