#include "kernels/gpu/word_operations.h"

#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/gpu/driver.h"
#include "kernels/gpu/status.h"

namespace paramshard::gpu {
namespace {

// Largest number of operations that the driver takes in one call.
constexpr size_t kMostInOneCall = 256;

// Registered memory has one address everywhere (cudaDevAttrCanUseHostPointerForRegisteredMem, on every 64-bit Linux).
CUdeviceptr AddressOf(void* word) { return reinterpret_cast<CUdeviceptr>(word); }

}  // namespace

void WordOperations::Write(void* word, uint32_t value) {
  CUstreamBatchMemOpParams& operation = operations_.emplace_back();
  operation = {};
  operation.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = AddressOf(word);
  operation.writeValue.value = value;
}

void WordOperations::Write64(void* word, uint64_t value) {
  CUstreamBatchMemOpParams& operation = operations_.emplace_back();
  operation = {};
  operation.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  operation.writeValue.address = AddressOf(word);
  operation.writeValue.value64 = value;
}

void WordOperations::Await(void* word, uint32_t value) {
  CUstreamBatchMemOpParams& operation = operations_.emplace_back();
  operation = {};
  operation.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = AddressOf(word);
  operation.waitValue.value = value;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
}

absl::Status WordOperations::Enqueue(cudaStream_t stream) {
  ASSIGN_OR_RETURN(const Driver* const driver, Driver::Get());
  absl::Status status;
  for (size_t first = 0; first < operations_.size() && status.ok(); first += kMostInOneCall) {
    const size_t count = std::min(kMostInOneCall, operations_.size() - first);
    status =
        ToStatus(driver->stream_batch_mem_op(stream, static_cast<unsigned int>(count), operations_.data() + first, 0),
                 "enqueue words");
  }
  operations_.clear();
  return status;
}

}  // namespace paramshard::gpu
