#include "kernels/gpu/stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/driver.h"
#include "kernels/gpu/faults.h"
#include "kernels/gpu/status.h"

namespace paramshard::gpu {

namespace {

// Returns this thread's context; null if it has none.
CUcontext CurrentContext() {
  const absl::StatusOr<const Driver*> driver = Driver::Get();
  CUcontext context = nullptr;
  return driver.ok() && (*driver)->ctx_get_current(&context) == CUDA_SUCCESS ? context : nullptr;
}

// Converts the answer of cudaStreamQuery() or cudaEventQuery().
absl::StatusOr<bool> IsDone(int device, cudaError_t answer) {
  if (answer == cudaErrorNotReady) {
    cudaGetLastError();  // it counts as one
    return false;
  }
  RETURN_IF_ERROR(ToStatus(answer, "look at a stream", device));
  return true;
}

}  // namespace

// Errors show at the next call that has a status.
DeviceScope::DeviceScope(int device) {
  int before = device;
  cudaGetDevice(&before);
  if (before == device) return;
  if (CurrentContext() != nullptr) before_ = before;
  cudaSetDevice(device);
}

DeviceScope::~DeviceScope() {
  if (before_.has_value()) cudaSetDevice(*before_);
}

absl::StatusOr<Stream> Stream::Create(int device) {
  const DeviceScope scope(device);
  Stream stream;
  stream.device_ = device;
  RETURN_IF_ERROR(ToStatus(cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking), "create a stream"));
  return stream;
}

Stream::Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)), device_(other.device_) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(stream_, other.stream_);
  std::swap(device_, other.device_);
  return *this;
}

// Sets the device first, here and below: on a thread that has not used CUDA before, the call would open GPU 0.
Stream::~Stream() {
  if (stream_ == nullptr) return;
  const DeviceScope scope(device_);
  cudaStreamDestroy(stream_);
}

absl::Status Stream::Synchronize(absl::Duration timeout) const { return AwaitStream(device_, stream_, timeout); }

absl::StatusOr<bool> Stream::IsIdle() const { return gpu::IsIdle(device_, stream_); }

absl::StatusOr<Event> Event::Create(int device) {
  const DeviceScope scope(device);
  Event event;
  event.device_ = device;
  RETURN_IF_ERROR(ToStatus(cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming), "create an event"));
  return event;
}

Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)), device_(other.device_) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  std::swap(device_, other.device_);
  return *this;
}

Event::~Event() {
  if (event_ == nullptr) return;
  const DeviceScope scope(device_);
  cudaEventDestroy(event_);
}

absl::Status Event::Record(cudaStream_t stream) {
  const DeviceScope scope(device_);
  return ToStatus(cudaEventRecord(event_, stream), "record an event", device_);
}

absl::Status Event::RecordDevice() {
  ASSIGN_OR_RETURN(const Driver* const driver, Driver::Get());
  const DeviceScope scope(device_);
  return ToStatus(driver->ctx_record_event(CurrentContext(), event_), "record the end of all streams");
}

absl::StatusOr<bool> Event::IsDone() const {
  RETURN_IF_ERROR(FaultOf(device_));
  const DeviceScope scope(device_);
  return gpu::IsDone(device_, cudaEventQuery(event_));
}

absl::StatusOr<bool> IsIdle(int device, cudaStream_t stream) {
  RETURN_IF_ERROR(FaultOf(device));
  const DeviceScope scope(device);
  return IsDone(device, cudaStreamQuery(stream));
}

// The runtime's own wait has no end.
absl::Status AwaitStream(int device, cudaStream_t stream, absl::Duration timeout) {
  ASSIGN_OR_RETURN(const bool done, Poll({.timeout = timeout}, [&] { return IsIdle(device, stream); }));
  if (done) return absl::OkStatus();
  return ReportFault(device, absl::StrCat("stream: timed out after ", absl::FormatDuration(timeout)));
}

}  // namespace paramshard::gpu
