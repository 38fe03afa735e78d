// Storage of the optimizer's moments.
//
// FP32 and BF16 (rounded to nearest even) store single elements. FP16 and FP8 (E4M3) store blocks of 128 consecutive
// elements of a row (the last block may be shorter), each with a float32 scale: scale_inv = amax / max (65504; 448), or
// 1 if the quotient is 0 or infinite; the code is cast(x / scale_inv), saturating. These types store square roots of
// exp_avg_sq: the moment is the square of code * scale_inv. They are a proposal of this project, after 8-bit optimizers
// (Dettmers et al., "8-bit Optimizers via Block-wise Quantization").

#ifndef PARAMSHARD_KERNELS_OPTIM_MOMENT_H_
#define PARAMSHARD_KERNELS_OPTIM_MOMENT_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "kernels/optim/moment_kind.h"
#include "kernels/optim/state_types.h"

namespace paramshard {

// All of them, by number.
inline constexpr MomentType kMomentTypes[] = {MomentType::kFP32, MomentType::kBF16, MomentType::kFP16,
                                              MomentType::kFP8};

// "FP32", "BF16", "FP16" or "FP8".
absl::string_view MomentTypeName(MomentType type);

constexpr int64_t kMomentBlockSize = 128;

// True for FP16 and FP8.
constexpr bool HasMomentScales(MomentType type) { return type == MomentType::kFP16 || type == MomentType::kFP8; }

// Size in bytes of one stored element, without its part of a scale.
constexpr int64_t MomentBytes(MomentType type) {
  switch (type) {
    case MomentType::kFP32:
      return 4;
    case MomentType::kBF16:
    case MomentType::kFP16:
      return 2;
    case MomentType::kFP8:
      return 1;
  }
  return 0;
}

// Number of scales of rows x cols elements, [rows, ceil(cols / 128)] of them; 0 for types without.
int64_t MomentScaleCount(MomentType type, int64_t rows, int64_t cols);

// One stored moment. Views: the caller owns the memory.
struct MutableMoment {
  void* data = nullptr;
  float* scales = nullptr;  // MomentScaleCount() of them
  MomentType type = MomentType::kFP32;
};

struct ConstMoment {
  const void* data = nullptr;
  const float* scales = nullptr;
  MomentType type = MomentType::kFP32;
};

// The part of a moment with rows of `cols` elements that begins at a row and a column, a multiple of kMomentBlockSize.
// As a moment of one row it reaches to the end of that row at most.
MutableMoment MomentAt(const MutableMoment& moment, int64_t cols, int64_t row, int64_t col);

// Stores rows x cols values; of squares the roots, in types with scales. NaN: 0x7fc00000 (16 bits 0x7fff; FP8 0x7f).
void EncodeMoment(MomentKind kind, const float* values, int64_t rows, int64_t cols, const MutableMoment& moment);

// Reads rows x cols values. Every NaN is 0x7fc00000.
void DecodeMoment(MomentKind kind, const ConstMoment& moment, int64_t rows, int64_t cols, float* values);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_MOMENT_H_
