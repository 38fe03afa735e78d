// A process that keeps a GPU busy, as trainers do whose streams never run dry.
#ifndef PARAMSHARD_TESTS_FAULTS_BUSY_GPU_H_
#define PARAMSHARD_TESTS_FAULTS_BUSY_GPU_H_

#include <functional>

#include "absl/status/status.h"

namespace paramshard::test {

// Keeps several streams of the GPU full of kernels, until something fails. `on_busy` is called once, when the first of
// them are done.
absl::Status KeepBusy(int gpu, const std::function<void()>& on_busy);

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_FAULTS_BUSY_GPU_H_
