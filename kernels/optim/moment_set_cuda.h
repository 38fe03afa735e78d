// The moments of an extent on the GPU, row by row.
//
// Internal to kernels/, for CUDA sources.

#ifndef PARAMSHARD_KERNELS_OPTIM_MOMENT_SET_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_MOMENT_SET_CUDA_H_

#include <cstdint>

#include "kernels/optim/moment_kind.h"
#include "kernels/optim/moment_rows_cuda.h"

namespace paramshard::gpu {

// The first kCount of kMomentKinds, each a MomentRows; their slots follow each other. All lanes of the warp call these
// functions, as in MomentRows.
template <typename Access, KernelMoments kMoments, int kCount>
class MomentSet {
  using Before = MomentSet<Access, kMoments, kCount - 1>;
  using Last = MomentRows<Access, kMoments, kMomentKinds[kCount - 1].is_square>;

 public:
  static constexpr int kSlotBytes = Before::kSlotBytes + Last::kSlotBytes;

  // A row of each moment as it is stored.
  struct Encoded {
    typename Before::Encoded before;
    typename Last::Encoded last;
  };

  explicit __device__ MomentSet(const PerMoment<MutableMoment>& moments)
      : before_(moments), last_(moments.values[kCount - 1]) {}

  template <typename WalkType>
  __device__ __forceinline__ void LoadScales(const WalkType& walk) {
    before_.LoadScales(walk);
    last_.LoadScales(walk);
  }
  template <typename WalkType>
  __device__ __forceinline__ void StoreScales(const WalkType& walk, int64_t distance) {
    before_.StoreScales(walk, distance);
    last_.StoreScales(walk, distance);
  }
  __device__ __forceinline__ void Fetch(int64_t index, uint32_t valid, uint8_t* slot) {
    before_.Fetch(index, valid, slot);
    last_.Fetch(index, valid, slot + Before::kSlotBytes);
  }
  // `values` has a row for each moment. Each moment reads its own row.
  template <int kRows>
  __device__ __forceinline__ void Read(int64_t index, int row, const uint8_t* slot, float (&values)[kRows][kQuad]) {
    before_.Read(index, row, slot, values);
    last_.Read(index, row, slot + Before::kSlotBytes, values[kCount - 1]);
  }
  // Encodes and stores a row. The moments' blocks are estimated together, before the first branch.
  template <int kRows>
  __device__ __forceinline__ void Store(const float (&values)[kRows][kQuad], int64_t index, int64_t distance, int row,
                                        uint32_t valid) {
    Encoded encoded;
    if (!Estimate(values, encoded)) Correct(values, encoded);
    Store(encoded, index, distance, row, valid);
  }

  // The steps of it, as those of MomentRows.
  template <int kRows>
  __device__ __forceinline__ static bool Estimate(const float (&values)[kRows][kQuad], Encoded& encoded) {
    const bool before = Before::Estimate(values, encoded.before);
    const bool last = Last::Estimate(values[kCount - 1], encoded.last);
    return before && last;
  }
  template <int kRows>
  __device__ __forceinline__ static void Correct(const float (&values)[kRows][kQuad], Encoded& encoded) {
    Before::Correct(values, encoded.before);
    Last::Correct(values[kCount - 1], encoded.last);
  }
  __device__ __forceinline__ void Store(const Encoded& encoded, int64_t index, int64_t distance, int row,
                                        uint32_t valid) {
    before_.Store(encoded.before, index, distance, row, valid);
    last_.Store(encoded.last, index, distance, row, valid);
  }

 private:
  Before before_;
  Last last_;
};

template <typename Access, KernelMoments kMoments>
class MomentSet<Access, kMoments, 0> {
 public:
  static constexpr int kSlotBytes = 0;

  explicit __device__ MomentSet(const PerMoment<MutableMoment>& /*moments*/) {}

  template <typename WalkType>
  __device__ void LoadScales(const WalkType& /*walk*/) {}
  template <typename WalkType>
  __device__ void StoreScales(const WalkType& /*walk*/, int64_t /*distance*/) {}
  __device__ void Fetch(int64_t /*index*/, uint32_t /*valid*/, uint8_t* /*slot*/) {}
  template <int kRows>
  __device__ void Read(int64_t /*index*/, int /*row*/, const uint8_t* /*slot*/, float (&/*values*/)[kRows][kQuad]) {}
  template <int kRows>
  __device__ void Store(const float (&/*values*/)[kRows][kQuad], int64_t /*index*/, int64_t /*distance*/, int /*row*/,
                        uint32_t /*valid*/) {}
  struct Encoded {};
  template <int kRows>
  __device__ static bool Estimate(const float (&/*values*/)[kRows][kQuad], Encoded& /*encoded*/) {
    return true;
  }
  template <int kRows>
  __device__ static void Correct(const float (&/*values*/)[kRows][kQuad], Encoded& /*encoded*/) {}
  __device__ void Store(const Encoded& /*encoded*/, int64_t /*index*/, int64_t /*distance*/, int /*row*/,
                        uint32_t /*valid*/) {}
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_MOMENT_SET_CUDA_H_
