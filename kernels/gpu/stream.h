// Owners of streams and of the device that calls go to.
#ifndef PARAMSHARD_KERNELS_GPU_STREAM_H_
#define PARAMSHARD_KERNELS_GPU_STREAM_H_

#include <cuda_runtime.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace paramshard::gpu {

// Makes `device` this thread's current device, and restores the previous device at the end of the scope. A thread that
// had not used CUDA before keeps `device`: restoring its default would open GPU 0.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope();

 private:
  std::optional<int> before_;
};

// Longest wait for a device's work. A device that takes longer is stuck and counts as broken (ReportFault): nothing
// that we enqueue takes seconds, or waits for a peer that may never come.
inline constexpr absl::Duration kStreamTimeout = absl::Minutes(5);

// Returns true if everything enqueued on a stream of the device so far is done. Returns errors of that work, and
// FaultOf(device).
absl::StatusOr<bool> IsIdle(int device, cudaStream_t stream);

// Waits until everything enqueued on a stream of the device so far is done, polling ever more rarely. Returns errors of
// that work, and FaultOf(device).
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
  // See IsIdle above.
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
  // Moves the point to the end of everything enqueued on the stream so far.
  absl::Status Record(cudaStream_t stream);
  // Moves the point likewise for all streams of the device in this process, including streams of other libraries.
  absl::Status RecordDevice();
  // Returns true if the device has passed the point, or none was recorded. Returns errors of the work before it, and
  // FaultOf(device).
  absl::StatusOr<bool> IsDone() const;

 private:
  Event() = default;

  cudaEvent_t event_ = nullptr;
  int device_ = 0;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_STREAM_H_
