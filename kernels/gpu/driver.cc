#include "kernels/gpu/driver.h"

#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/status.h"

namespace paramshard::gpu {
namespace {

// The version whose functions `Driver` declares: one with the same signatures in every later one.
constexpr unsigned int kVersion = 12050;

template <typename Function>
absl::Status LookUp(const char* name, Function& function) {
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  void* address = nullptr;
  RETURN_IF_ERROR(ToStatus(cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &found),
                           absl::StrCat("look up ", name)));
  if (found != cudaDriverEntryPointSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("look up ", name, ": not found, want a CUDA driver 12.5 or newer"));
  }
  function = reinterpret_cast<Function>(address);
  return absl::OkStatus();
}

absl::StatusOr<Driver> Load() {
  Driver driver;
  RETURN_IF_ERROR(LookUp("cuCtxGetCurrent", driver.ctx_get_current));
  RETURN_IF_ERROR(LookUp("cuCtxRecordEvent", driver.ctx_record_event));
  RETURN_IF_ERROR(LookUp("cuDeviceGet", driver.device_get));
  RETURN_IF_ERROR(LookUp("cuDeviceGetAttribute", driver.device_get_attribute));
  RETURN_IF_ERROR(LookUp("cuMemCreate", driver.mem_create));
  RETURN_IF_ERROR(LookUp("cuMemRelease", driver.mem_release));
  RETURN_IF_ERROR(LookUp("cuMemAddressReserve", driver.mem_address_reserve));
  RETURN_IF_ERROR(LookUp("cuMemAddressFree", driver.mem_address_free));
  RETURN_IF_ERROR(LookUp("cuMemMap", driver.mem_map));
  RETURN_IF_ERROR(LookUp("cuMemUnmap", driver.mem_unmap));
  RETURN_IF_ERROR(LookUp("cuMemSetAccess", driver.mem_set_access));
  RETURN_IF_ERROR(LookUp("cuMemGetAllocationGranularity", driver.mem_get_allocation_granularity));
  RETURN_IF_ERROR(LookUp("cuMemGetAllocationPropertiesFromHandle", driver.mem_get_allocation_properties_from_handle));
  RETURN_IF_ERROR(LookUp("cuMemExportToShareableHandle", driver.mem_export_to_shareable_handle));
  RETURN_IF_ERROR(LookUp("cuMemImportFromShareableHandle", driver.mem_import_from_shareable_handle));
  RETURN_IF_ERROR(LookUp("cuStreamBatchMemOp", driver.stream_batch_mem_op));
  RETURN_IF_ERROR(LookUp("cuTensorMapEncodeTiled", driver.tensor_map_encode_tiled));
  return driver;
}

}  // namespace

absl::StatusOr<const Driver*> Driver::Get() {
  static const absl::StatusOr<Driver>* const driver = new absl::StatusOr<Driver>(Load());
  if (!driver->ok()) return driver->status();
  return &**driver;
}

}  // namespace paramshard::gpu
