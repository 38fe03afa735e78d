#include "kernels/gpu/stream.h"

#include <ctime>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/gpu/status.h"

namespace paramshard::gpu {

// Errors show at the next call that has a status.
DeviceScope::DeviceScope(int device) {
  cudaGetDevice(&before_);
  if (before_ != device) cudaSetDevice(device);
}

DeviceScope::~DeviceScope() { cudaSetDevice(before_); }

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

Stream::~Stream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status Stream::Poll() const {
  constexpr timespec kNap = {.tv_sec = 0, .tv_nsec = 5000};
  cudaError_t state = cudaStreamQuery(stream_);
  while (state == cudaErrorNotReady) {
    nanosleep(&kNap, nullptr);
    state = cudaStreamQuery(stream_);
  }
  return ToStatus(state, "wait for a stream");
}

absl::Status Stream::Synchronize() const { return ToStatus(cudaStreamSynchronize(stream_), "wait for a stream"); }

}  // namespace paramshard::gpu
