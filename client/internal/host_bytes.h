// Bytes in host memory.
#ifndef PARAMSHARD_CLIENT_INTERNAL_HOST_BYTES_H_
#define PARAMSHARD_CLIENT_INTERNAL_HOST_BYTES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/internal/gpu_memory.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {

// A view of host memory, or a copy from the GPU.
class HostBytes {
 public:
  // `gpu` is where the bytes lie; -1: the host.
  static absl::StatusOr<HostBytes> Of(int gpu, absl::Span<const uint8_t> bytes) {
    HostBytes host;
    host.view_ = bytes;
    if (gpu < 0) return host;
    host.copy_.resize(bytes.size());
    RETURN_IF_ERROR(CopyFromGpu(gpu, bytes, host.copy_.data()));
    host.view_ = host.copy_;
    return host;
  }

  const uint8_t* data() const { return view_.data(); }

 private:
  std::vector<uint8_t> copy_;
  absl::Span<const uint8_t> view_;  // of copy_, whose bytes stay where they are when it moves
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_HOST_BYTES_H_
