// View of a device's bytes for the host.
#ifndef PARAMSHARD_SERVER_DEVICE_HOST_VIEW_H_
#define PARAMSHARD_SERVER_DEVICE_HOST_VIEW_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/types/span.h"

namespace paramshard::server {

// Refers to the bytes in place if the host can read them, else to a copy that the view owns. Move-only.
class HostView {
 public:
  HostView() = default;
  explicit HostView(absl::Span<const uint8_t> in_place) : bytes_(in_place) {}
  HostView(std::unique_ptr<uint8_t[]> copy, int64_t size_bytes)
      : copy_(std::move(copy)), bytes_(copy_.get(), static_cast<size_t>(size_bytes)) {}

  absl::Span<const uint8_t> bytes() const { return bytes_; }
  const uint8_t* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }

 private:
  std::unique_ptr<uint8_t[]> copy_;
  absl::Span<const uint8_t> bytes_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_HOST_VIEW_H_
