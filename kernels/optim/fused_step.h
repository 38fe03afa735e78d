// The fused optimizer step: gradients in; moments, master and the planes of the new master out, in one pass.

#ifndef PARAMSHARD_KERNELS_OPTIM_FUSED_STEP_H_
#define PARAMSHARD_KERNELS_OPTIM_FUSED_STEP_H_

#include <cstdint>

#include "kernels/formats/codec.h"
#include "kernels/formats/format_id.h"
#include "kernels/optim/moment.h"
#include "kernels/optim/optimizer_step.h"
#include "kernels/optim/state_types.h"
#include "kernels/reduce/gradient.h"

namespace paramshard {

// The optimizer's state of an extent: `rows` x `cols` elements each, row-major, contiguous, aligned for their element.
// Views: the caller owns the memory.
struct OptimizerState {
  // Null if the master is stored as BF16 and remainder.
  float* master = nullptr;
  // The lower half of a master whose upper half is a weight (master_remainder.h); else null.
  int16_t* remainder = nullptr;
  // Set for the moments that the optimizer keeps (optimizers.h).
  PerMoment<MutableMoment> moments = {};
  // BF16; null where they are the data of the row-wise plane.
  uint16_t* weights = nullptr;
};

// 1 - beta^step, computed in double and rounded once. `step` counts from 1.
float BiasCorrection(float beta, int64_t step);

// Returns a parameter's step; `number` counts the parameter's steps from 1.
OptimizerStep MakeStep(Optimizer optimizer, const Hyperparameters& hyperparameters, bool bias_correction,
                       int64_t number, float gradient_scale);

// Steps one extent: scales the gradient, updates moments and master in place, and encodes the new master into its
// planes. The result is the same, byte for byte, as the update followed by EncodePlanes(), and as doing so for the
// extent's granules one by one. Every NaN in the state is stored as 0x7fc00000 (moments: see moment.h).
//
// `gradient` is rows x cols like the state; BF16 is widened. A plane whose data is null is not written
// (see EncodePlanes). None of the arrays overlap.
//
// Formats that EncodesAfterAmax() are not encoded here: call EncodePlanes() when the amax over all ranks is known.
// FP8_TENSOR_DELAYED is encoded with `scaling`. A master with a remainder is not encoded but split into BF16 weights
// and the remainder; where `state.weights` is not the plane, the weights are copied into the plane. Returns the amax of
// the new master if NeedsAmax(), else 0.
//
// `distance`: the old state lies this many bytes before `state`, without overlap; the new state is written to `state`.
//
// Requires: CheckEncodable(encoding).ok(); IsOptimizer(step.optimizer); for a master with a remainder BF16 and row_wise.data,
// and weights apart from the plane if the state moves.
float FusedStep(const OptimizerStep& step, ConstGradient gradient, const OptimizerState& state, int64_t rows,
                int64_t cols, const Encoding& encoding, MutablePlane row_wise, MutablePlane column_wise,
                const TensorScaling& scaling = {}, int64_t distance = 0);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_FUSED_STEP_H_
