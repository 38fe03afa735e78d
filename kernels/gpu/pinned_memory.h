// Owner of host memory that copies to and from a device do not stage.
#ifndef PARAMSHARD_KERNELS_GPU_PINNED_MEMORY_H_
#define PARAMSHARD_KERNELS_GPU_PINNED_MEMORY_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"

namespace paramshard::gpu {

// An array of `T`, which is trivially copyable and destructible; its elements are not initialized. Move-only; frees
// itself.
template <typename T>
class PinnedArray {
 public:
  static absl::StatusOr<PinnedArray> Create(int64_t count) {
    PinnedArray array;
    if (count == 0) return array;
    void* memory = nullptr;
    RETURN_IF_ERROR(
        ToStatus(cudaMallocHost(&memory, static_cast<size_t>(count) * sizeof(T)), "allocate pinned memory"));
    array.elements_.reset(static_cast<T*>(memory));
    RETURN_IF_ERROR(ToStatus(cudaGetDevice(&array.elements_.get_deleter().device), "ask for the device"));
    return array;
  }

  T* data() const { return elements_.get(); }
  T& operator[](int64_t i) const { return elements_.get()[i]; }

 private:
  struct Free {
    // A thread that has not used CUDA before would open GPU 0.
    void operator()(T* memory) const {
      const DeviceScope scope(device);
      cudaFreeHost(memory);
    }
    int device = 0;  // of the thread that allocated it
  };

  std::unique_ptr<T, Free> elements_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_PINNED_MEMORY_H_
