// Owners of device memory, and of host memory that a device may touch.
#ifndef PARAMSHARD_KERNELS_GPU_MEMORY_H_
#define PARAMSHARD_KERNELS_GPU_MEMORY_H_

#include <cuda.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace paramshard::gpu {

// Memory of one device, mapped at one address. Move-only; frees itself. Empty after a move.
//
// The physical memory lives until every process that has mapped it unmaps it.
class DeviceMemory {
 public:
  // Zeroed memory of `device`, which is among `accessors`: the devices that may read and write it. Rounded up to the
  // device's granularity (2 MiB). With `shareable`, Export() works. RESOURCE_EXHAUSTED.
  static absl::StatusOr<DeviceMemory> Create(int device, int64_t size_bytes, absl::Span<const int> accessors,
                                             bool shareable);

  // Maps memory that another process exported. `size_bytes` as given to Create there; the descriptor may be closed
  // afterwards. With `read_only` a write faults in this process. `others` may access it, too.
  static absl::StatusOr<DeviceMemory> Import(int device, int fd, int64_t size_bytes, bool read_only,
                                             absl::Span<const int> others = {});

  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory() { Reset(); }

  // DATA_LOSS unless imported memory lies on the device on which it was imported.
  absl::Status CheckPlace() const;

  // A descriptor that stands for the memory in other processes. The caller closes it.
  absl::StatusOr<int> Export() const;

  // The driver's addresses are integers. NOLINTNEXTLINE(performance-no-int-to-ptr)
  uint8_t* data() const { return reinterpret_cast<uint8_t*>(address_); }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  absl::Status Map(absl::Span<const int> accessors, CUmemAccess_flags access);
  void Reset();

  int device_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  int64_t size_bytes_ = 0;
  int64_t mapped_bytes_ = 0;
  bool has_handle_ = false;
  bool mapped_ = false;
};

// Makes host memory accessible to every device of this process, for as long as the object lives, by the device of the
// thread that registers it. Move-only.
class HostRegistration {
 public:
  // `data` is page-aligned and outlives the registration.
  static absl::StatusOr<HostRegistration> Register(void* data, int64_t size_bytes);

  HostRegistration() = default;
  HostRegistration(HostRegistration&& other) noexcept { *this = std::move(other); }
  HostRegistration& operator=(HostRegistration&& other) noexcept;
  ~HostRegistration() { Reset(); }

 private:
  void Reset();

  void* data_ = nullptr;
  int device_ = 0;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_MEMORY_H_
