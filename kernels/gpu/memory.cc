#include "kernels/gpu/memory.h"

#include <cuda_runtime.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/driver.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"

namespace paramshard::gpu {
namespace {

CUmemAllocationProp PropertiesOf(int device, bool shareable) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  if (shareable) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

absl::StatusOr<int64_t> RoundUp(const Driver& driver, const CUmemAllocationProp& properties, int64_t size_bytes) {
  size_t granularity = 0;
  RETURN_IF_ERROR(
      ToStatus(driver.mem_get_allocation_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
               "ask for the granularity of device memory"));
  const auto step = static_cast<int64_t>(granularity);
  return (size_bytes + step - 1) / step * step;
}

}  // namespace

absl::StatusOr<DeviceMemory> DeviceMemory::Create(int device, int64_t size_bytes, absl::Span<const int> accessors,
                                                  bool shareable) {
  const DeviceScope scope(device);
  DeviceMemory memory;
  memory.device_ = device;
  memory.size_bytes_ = size_bytes;
  if (size_bytes == 0) return memory;
  // The runtime's first call creates the device's context.
  RETURN_IF_ERROR(ToStatus(cudaFree(nullptr), absl::StrCat("open device cuda:", device)));
  ASSIGN_OR_RETURN(const Driver* const driver, Driver::Get());
  const CUmemAllocationProp properties = PropertiesOf(device, shareable);
  ASSIGN_OR_RETURN(memory.mapped_bytes_, RoundUp(*driver, properties, size_bytes));
  RETURN_IF_ERROR(ToStatus(driver->mem_create(&memory.handle_, memory.mapped_bytes_, &properties, 0),
                           absl::StrCat("allocate ", memory.mapped_bytes_, " bytes of cuda:", device)));
  memory.has_handle_ = true;
  RETURN_IF_ERROR(memory.Map(accessors, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  ASSIGN_OR_RETURN(const Stream stream, Stream::Create(device));
  RETURN_IF_ERROR(
      ToStatus(cudaMemsetAsync(memory.data(), 0, memory.mapped_bytes_, stream.get()), "zero device memory"));
  RETURN_IF_ERROR(stream.Synchronize());
  return memory;
}

absl::StatusOr<DeviceMemory> DeviceMemory::Import(int device, int fd, int64_t size_bytes, bool read_only,
                                                  absl::Span<const int> others) {
  const DeviceScope scope(device);
  DeviceMemory memory;
  memory.device_ = device;
  memory.size_bytes_ = size_bytes;
  if (size_bytes == 0) return memory;
  RETURN_IF_ERROR(ToStatus(cudaFree(nullptr), absl::StrCat("open device cuda:", device)));
  ASSIGN_OR_RETURN(const Driver* const driver, Driver::Get());
  ASSIGN_OR_RETURN(memory.mapped_bytes_, RoundUp(*driver, PropertiesOf(device, true), size_bytes));
  // The driver takes a descriptor as an address. NOLINTNEXTLINE(performance-no-int-to-ptr)
  void* const handle = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  RETURN_IF_ERROR(ToStatus(
      driver->mem_import_from_shareable_handle(&memory.handle_, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "import device memory"));
  memory.has_handle_ = true;
  std::vector<int> accessors = {device};
  accessors.insert(accessors.end(), others.begin(), others.end());
  RETURN_IF_ERROR(
      memory.Map(accessors, read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  return memory;
}

absl::Status DeviceMemory::Map(absl::Span<const int> accessors, CUmemAccess_flags access) {
  ASSIGN_OR_RETURN(const Driver* const driver, Driver::Get());
  RETURN_IF_ERROR(
      ToStatus(driver->mem_address_reserve(&address_, mapped_bytes_, 0, 0, 0), "reserve addresses of device memory"));
  RETURN_IF_ERROR(ToStatus(driver->mem_map(address_, mapped_bytes_, 0, handle_, 0), "map device memory"));
  mapped_ = true;
  std::vector<CUmemAccessDesc> grants(accessors.size());
  for (size_t i = 0; i < grants.size(); ++i) {
    grants[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    grants[i].location.id = accessors[i];
    grants[i].flags = access;
  }
  return ToStatus(driver->mem_set_access(address_, mapped_bytes_, grants.data(), grants.size()),
                  "open device memory to devices");
}

absl::Status DeviceMemory::CheckPlace() const {
  if (!has_handle_) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Driver* const driver, Driver::Get());
  CUmemAllocationProp properties = {};
  RETURN_IF_ERROR(ToStatus(driver->mem_get_allocation_properties_from_handle(&properties, handle_),
                           "ask where device memory lies"));
  if (properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties.location.id == device_) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("import device memory: want memory of cuda:", device_, ", got cuda:", properties.location.id));
}

absl::StatusOr<int> DeviceMemory::Export() const {
  ASSIGN_OR_RETURN(const Driver* const driver, Driver::Get());
  int fd = -1;
  RETURN_IF_ERROR(
      ToStatus(driver->mem_export_to_shareable_handle(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
               "export device memory"));
  return fd;
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this != &other) {
    Reset();
    device_ = other.device_;
    handle_ = other.handle_;
    address_ = std::exchange(other.address_, 0);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
    has_handle_ = std::exchange(other.has_handle_, false);
    mapped_ = std::exchange(other.mapped_, false);
  }
  return *this;
}

void DeviceMemory::Reset() {
  if (!has_handle_) return;
  const Driver* const driver = *Driver::Get();
  if (mapped_) driver->mem_unmap(address_, mapped_bytes_);
  if (address_ != 0) driver->mem_address_free(address_, mapped_bytes_);
  driver->mem_release(handle_);
  has_handle_ = false;
  mapped_ = false;
  address_ = 0;
}

absl::StatusOr<HostRegistration> HostRegistration::Register(void* data, int64_t size_bytes) {
  RETURN_IF_ERROR(ToStatus(cudaHostRegister(data, size_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
                           "register host memory with the devices"));
  HostRegistration registration;
  registration.data_ = data;
  RETURN_IF_ERROR(ToStatus(cudaGetDevice(&registration.device_), "ask for the device"));
  return registration;
}

HostRegistration& HostRegistration::operator=(HostRegistration&& other) noexcept {
  if (this != &other) {
    Reset();
    data_ = std::exchange(other.data_, nullptr);
    device_ = other.device_;
  }
  return *this;
}

void HostRegistration::Reset() {
  if (data_ == nullptr) return;
  // A thread that has not used CUDA before would open GPU 0.
  const DeviceScope scope(device_);
  cudaHostUnregister(std::exchange(data_, nullptr));
}

}  // namespace paramshard::gpu
