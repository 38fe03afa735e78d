// Owners of streams and of the device that calls go to.
#ifndef PARAMSHARD_KERNELS_GPU_STREAM_H_
#define PARAMSHARD_KERNELS_GPU_STREAM_H_

#include <cuda_runtime.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace paramshard::gpu {

// Makes `device` the one that this thread's calls go to, and goes back at the end of the scope. A thread that had not
// used CUDA before stays with `device`: going back would open GPU 0, its default.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope();

 private:
  std::optional<int> before_;
};

// For how long a device may be at the work of one wait. A device that takes longer is stuck, and counts as broken
// (ReportFault): nothing that we enqueue takes seconds, or waits for anybody who may never come.
inline constexpr absl::Duration kStreamTimeout = absl::Minutes(5);

// Whether everything enqueued on a stream of the device so far is done. Errors of that work; FaultOf(device).
absl::StatusOr<bool> IsIdle(int device, cudaStream_t stream);

// Waits until everything enqueued on a stream of the device so far is done, looking ever more rarely. Errors of that
// work; FaultOf(device).
absl::Status AwaitStream(int device, cudaStream_t stream, absl::Duration timeout = kStreamTimeout);

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
  // See AwaitStream.
  absl::Status Synchronize(absl::Duration timeout = kStreamTimeout) const;
  // Whether it is done by now. Errors likewise.
  absl::StatusOr<bool> IsIdle() const;

 private:
  cudaStream_t stream_ = nullptr;
  int device_ = 0;
};

// A point in one or all streams of a device. Move-only; destroys itself.
class Event {
 public:
  static absl::StatusOr<Event> Create(int device);

  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  cudaEvent_t get() const { return event_; }
  // The point is now the end of what the stream has been given.
  absl::Status Record(cudaStream_t stream);
  // The same of all streams of the device in this process, whoever made them.
  absl::Status RecordDevice();
  // Whether the stream has come past the point; true where none was recorded. Errors of that work; FaultOf(device).
  absl::StatusOr<bool> IsDone() const;

 private:
  Event() = default;

  cudaEvent_t event_ = nullptr;
  int device_ = 0;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_STREAM_H_
