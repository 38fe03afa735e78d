#include "kernels/gpu/stream.h"

#include <ctime>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/gpu/driver.h"
#include "kernels/gpu/status.h"

namespace paramshard::gpu {

namespace {

bool HasContext() {
  const absl::StatusOr<const Driver*> driver = Driver::Get();
  CUcontext context = nullptr;
  return driver.ok() && (*driver)->ctx_get_current(&context) == CUDA_SUCCESS && context != nullptr;
}

}  // namespace

// Errors show at the next call that has a status.
DeviceScope::DeviceScope(int device) {
  int before = device;
  cudaGetDevice(&before);
  if (before == device) return;
  if (HasContext()) before_ = before;
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

Stream::~Stream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status Stream::Synchronize() const { return ToStatus(cudaStreamSynchronize(stream_), "wait for a stream"); }

absl::StatusOr<bool> Stream::IsIdle() const {
  const cudaError_t state = cudaStreamQuery(stream_);
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // it counts as one
    return false;
  }
  RETURN_IF_ERROR(ToStatus(state, "look at a stream"));
  return true;
}

absl::Status Stream::Poll() const {
  constexpr timespec kNap = {.tv_sec = 0, .tv_nsec = 5000};
  while (true) {
    ASSIGN_OR_RETURN(const bool idle, IsIdle());
    if (idle) return absl::OkStatus();
    nanosleep(&kNap, nullptr);
  }
}

}  // namespace paramshard::gpu
