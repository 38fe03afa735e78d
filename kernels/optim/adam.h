// The fused optimizer step: gradients in; moments, master and the planes of the new master out, in one pass.

#ifndef PARAMSHARD_KERNELS_OPTIM_ADAM_H_
#define PARAMSHARD_KERNELS_OPTIM_ADAM_H_

#include <cstdint>

#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"
#include "kernels/optim/adam_math.h"

namespace paramshard {

// How a moment is stored. BF16 is rounded to nearest even.
enum class MomentType : uint8_t { kFP32 = 1, kBF16 = 2 };

// Size in bytes of one stored moment.
int64_t MomentBytes(MomentType type);

// The optimizer's state of an extent: `rows` x `cols` elements each, row-major, contiguous, aligned for their element.
// Views: the caller owns the memory.
struct AdamState {
  float* master = nullptr;
  void* exp_avg = nullptr;
  MomentType exp_avg_type = MomentType::kFP32;
  void* exp_avg_sq = nullptr;
  MomentType exp_avg_sq_type = MomentType::kFP32;
};

// 1 - beta^step, computed in double and rounded once. `step` counts from 1.
float BiasCorrection(float beta, int64_t step);

// Steps one extent: scales the gradient, updates moments and master in place, and encodes the new master into its planes.
// The result is the same, byte for byte, as the update followed by EncodePlanes(), and as doing so for the extent's granules
// one by one. Every NaN in the state is stored as 0x7fc00000 (bf16: 0x7fff).
//
// `gradient` is rows x cols like the state. A plane whose data is null is not written (see EncodePlanes). None of the
// arrays overlap.
//
// Requires: CheckEncodable(encoding).ok().
void FusedAdam(const AdamStep& step, const float* gradient, const AdamState& state, int64_t rows, int64_t cols,
               const Encoding& encoding, MutablePlane row_wise, MutablePlane column_wise);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_ADAM_H_
