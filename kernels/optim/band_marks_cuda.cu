#include "kernels/optim/band_marks_cuda.h"

#include "kernels/base/status_macros.h"
#include "kernels/gpu/driver.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/word_operations.h"

namespace paramshard::gpu {
namespace {

// The end of the kernel orders its store before later work of the stream. The fence orders earlier work before the
// store for the host, too, like an operation of the stream.
__global__ void WriteWord(volatile uint64_t* word, uint64_t value) {
  __threadfence_system();
  *word = value;
}

}  // namespace

absl::StatusOr<BandMarks> BandMarks::Create(int device) {
  ASSIGN_OR_RETURN(const Driver* const driver, Driver::Get());
  CUdevice handle = 0;
  RETURN_IF_ERROR(ToStatus(driver->device_get(&handle, device), "marks of a step"));
  int has_operations = 0;
  RETURN_IF_ERROR(
      ToStatus(driver->device_get_attribute(&has_operations, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, handle),
               "marks of a step"));
  return BandMarks(has_operations != 0 ? Means::kStreamOperations : Means::kKernels);
}

absl::Status BandMarks::Write(uint64_t* word, uint64_t value, cudaStream_t stream) const {
  if (word == nullptr) return absl::OkStatus();
  if (means_ == Means::kKernels) {
    WriteWord<<<1, 1, 0, stream>>>(word, value);
    return LaunchStatus("mark a band");
  }
  WordOperations mark;
  mark.Write64(word, value);
  return mark.Enqueue(stream);
}

}  // namespace paramshard::gpu
