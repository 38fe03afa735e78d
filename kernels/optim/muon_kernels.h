// The phases of Muon's step on a GPU that go element by element, besides the master's: the bytes of muon.h.
//
// Internal to kernels/ and devices.

#ifndef PARAMSHARD_KERNELS_OPTIM_MUON_KERNELS_H_
#define PARAMSHARD_KERNELS_OPTIM_MUON_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/optim/moment.h"
#include "kernels/optim/optimizer_step.h"
#include "kernels/reduce/gradient.h"

namespace paramshard::gpu {

// Neighbouring elements of an extent; the momentum is FP32 or BF16. Pointers to device memory, aligned for their
// elements; faster if aligned for four. A part writes nothing that another one reads.
struct MuonElements {
  OptimizerStep step;
  ConstGradient gradient;
  MutableMoment momentum;
  bool is_stepped = false;     // the momentum: it is that after the step
  MutableMoment fresh = {};    // of the momentum's type; the same place, or apart; data null: not written
  uint16_t* update = nullptr;  // null: not made
  int64_t count = 0;
};

// Enqueues StepMuonMomentum() to `fresh`, and MakeMuonUpdate().
absl::Status StepMuon(absl::Span<const MuonElements> parts, cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_MUON_KERNELS_H_
