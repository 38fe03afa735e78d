// Owners of streams and of the device that calls go to.
#ifndef PARAMSHARD_KERNELS_GPU_STREAM_H_
#define PARAMSHARD_KERNELS_GPU_STREAM_H_

#include <cuda_runtime.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace paramshard::gpu {

// Makes `device` the one that this thread's calls go to, and goes back at the end of the scope. A thread that had not used
// CUDA before stays with `device`: going back would open GPU 0, its default.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope();

 private:
  std::optional<int> before_;
};

// A stream that does not wait for the default stream. Move-only; destroys itself.
class Stream {
 public:
  static absl::StatusOr<Stream> Create(int device);

  Stream() = default;
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  cudaStream_t get() const { return stream_; }
  int device() const { return device_; }
  // Waits until everything enqueued so far is done. Errors of that work.
  absl::Status Synchronize() const;
  // Whether it is done by now. Errors likewise.
  absl::StatusOr<bool> IsIdle() const;
  // Synchronize, looking every few microseconds instead of being woken: sooner, for work that does not take long.
  absl::Status Poll() const;

 private:
  cudaStream_t stream_ = nullptr;
  int device_ = 0;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_STREAM_H_
