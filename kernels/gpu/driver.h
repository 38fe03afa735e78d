// The functions of the CUDA driver that the runtime does not offer, looked up when they are first needed: a program
// that links the driver does not start without one.
#ifndef PARAMSHARD_KERNELS_GPU_DRIVER_H_
#define PARAMSHARD_KERNELS_GPU_DRIVER_H_

#include <cuda.h>

#include "absl/status/statusor.h"

namespace paramshard::gpu {

struct Driver {
  // FAILED_PRECONDITION without a driver, or with one that lacks a function (names it). Thread-safe; the same object
  // for the life of the process.
  static absl::StatusOr<const Driver*> Get();

  decltype(&cuCtxGetCurrent) ctx_get_current = nullptr;
  decltype(&cuCtxRecordEvent) ctx_record_event = nullptr;
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&cuMemCreate) mem_create = nullptr;
  decltype(&cuMemRelease) mem_release = nullptr;
  decltype(&cuMemAddressReserve) mem_address_reserve = nullptr;
  decltype(&cuMemAddressFree) mem_address_free = nullptr;
  decltype(&cuMemMap) mem_map = nullptr;
  decltype(&cuMemUnmap) mem_unmap = nullptr;
  decltype(&cuMemSetAccess) mem_set_access = nullptr;
  decltype(&cuMemGetAllocationGranularity) mem_get_allocation_granularity = nullptr;
  decltype(&cuMemGetAllocationPropertiesFromHandle) mem_get_allocation_properties_from_handle = nullptr;
  decltype(&cuMemExportToShareableHandle) mem_export_to_shareable_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) mem_import_from_shareable_handle = nullptr;
  decltype(&cuStreamBatchMemOp) stream_batch_mem_op = nullptr;
  decltype(&cuTensorMapEncodeTiled) tensor_map_encode_tiled = nullptr;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_DRIVER_H_
