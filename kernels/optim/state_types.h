// Choices that a model makes for an optimizer: which one, and the types in which its state is stored.
#ifndef PARAMSHARD_KERNELS_OPTIM_STATE_TYPES_H_
#define PARAMSHARD_KERNELS_OPTIM_STATE_TYPES_H_

#include <cstdint>

namespace paramshard {

// The optimizer of a parameter group. docs/reference/numerics.md has the formulas. The numbers are stable: they are part
// of the protocol.
enum class Optimizer : uint8_t {
  kAdamW = 1,  // decays the parameter directly (Loshchilov and Hutter, "Decoupled Weight Decay Regularization")
  kAdam = 2,   // adds the decay to the gradient
  kSgd = 3,    // without momentum
  kSgdMomentum = 4,
  kSgdNesterov = 5,
  kLion = 6,
  kMuon = 7,  // of whole matrices
  kMuonNesterov = 8,
};

// Storage of a master: beside the planes, or as a BF16 plane and the lower half of its bits. The numbers are stable.
enum class MasterType : uint8_t { kFP32 = 1, kBF16Remainder = 2 };

// Storage of a moment (moment.h). The numbers are stable.
enum class MomentType : uint8_t { kFP32 = 1, kBF16 = 2, kFP16 = 3, kFP8 = 4 };

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_STATE_TYPES_H_
