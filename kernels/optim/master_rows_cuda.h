// Masters on a GPU: a thread's four elements of a row, in shared memory and back to global memory.
//
// Internal to kernels/, for CUDA sources.

#ifndef PARAMSHARD_KERNELS_OPTIM_MASTER_ROWS_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_MASTER_ROWS_CUDA_H_

#include <cstdint>

#include "kernels/optim/master_remainder.h"
#include "kernels/optim/step_kernels.h"
#include "kernels/optim/tile_memory_cuda.h"

namespace paramshard::gpu {

// Stored as they are. After an update the row in shared memory holds the new master.
template <typename Access>
class FloatMasters {
 public:
  static constexpr int kExtraRows = 0;

  explicit __device__ FloatMasters(const DeviceExtent& extent) : master_(extent.master) {}

  template <int kRows>
  __device__ void Fetch(int64_t index, uint32_t valid, int row) const {
    Access::Fetch(master_, index, valid, MasterRow(row));
  }
  template <int kRows>
  __device__ Quad<float> Read(int64_t index, int row) const {
    return Access::Read(master_, index, MasterRow(row));
  }
  __device__ void Store(const Quad<float>& quad, int64_t index, int64_t distance, uint32_t valid, int row) const {
    Access::Keep(quad, MasterRow(row));
    Access::Store(quad, index, valid, Moved(master_, distance));
  }

 private:
  float* master_;
};

// A master stored as BF16 weights and remainders. Weights apart from the plane are stored to the plane, too.
template <typename Access>
class SplitMasters {
 private:
  static constexpr int kHalfRowBytes = Access::template kRowBytes<uint16_t>;

 public:
  // Rows of remainders that do not fit beside the weights of a row.
  static constexpr int kExtraRows = 2 * kHalfRowBytes > kFloatRowBytes ? 1 : 0;

  explicit __device__ SplitMasters(const DeviceExtent& extent)
      : weights_(extent.weights),
        remainders_(reinterpret_cast<uint16_t*>(extent.remainder)),
        plane_(reinterpret_cast<uint8_t*>(extent.weights) == extent.row_wise.data ? nullptr : extent.row_wise.data) {}

  template <int kRows>
  __device__ void Fetch(int64_t index, uint32_t valid, int row) const {
    Access::Fetch(weights_, index, valid, MasterRow(row));
    Access::Fetch(remainders_, index, valid, RemainderRow<kRows>(row));
  }

  template <int kRows>
  __device__ Quad<float> Read(int64_t index, int row) const {
    const Quad<uint16_t> weights = Access::Read(weights_, index, MasterRow(row));
    const Quad<uint16_t> remainders = Access::Read(remainders_, index, RemainderRow<kRows>(row));
    Quad<float> quad;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      quad.values[j] = Join({weights.Get(j), static_cast<int16_t>(remainders.Get(j))});
    }
    return quad;
  }

  __device__ void Store(const Quad<float>& quad, int64_t index, int64_t distance, uint32_t valid, int) const {
    Quad<uint16_t> weights;
    Quad<uint16_t> remainders;
#pragma unroll
    for (int i = 0; i < kQuad / 2; ++i) {
      const uint32_t first = FloatBits(quad.values[2 * i]);
      const uint32_t second = FloatBits(quad.values[2 * i + 1]);
      // Split() of both values: the upper halves of the rounded values, and the lower halves.
      weights.words[i] = __byte_perm(first + 0x8000u, second + 0x8000u, 0x7632);
      remainders.words[i] = __byte_perm(first, second, 0x5410);
    }
    Access::Store(weights, index, valid, Moved(weights_, distance));
    if (plane_ != nullptr) Access::StoreAnywhere(weights, index, valid, plane_);
    Access::Store(remainders, index, valid, Moved(remainders_, distance));
  }

 private:
  template <int kRows>
  __device__ static uint8_t* RemainderRow(int row) {
    return kExtraRows == 0 ? MasterRow(row) + kHalfRowBytes : MasterRow(kRows + row);
  }

  uint16_t* weights_;
  uint16_t* remainders_;
  uint8_t* plane_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_MASTER_ROWS_CUDA_H_
