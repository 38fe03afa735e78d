// Fixed choices of Muon: the adjustment of its learning rate, and the coefficients of its iterations.
#ifndef PARAMSHARD_KERNELS_OPTIM_MUON_OPTIONS_H_
#define PARAMSHARD_KERNELS_OPTIM_MUON_OPTIONS_H_

#include <cstdint>
#include <vector>

namespace paramshard {

// Factor of the learning rate for a matrix of [outputs, inputs]. The numbers are stable: they are part of the protocol.
enum class MuonRate : uint8_t {
  kOriginal = 1,           // sqrt(max(1, outputs / inputs))
  kMatchRmsAdamW = 2,      // 0.2 sqrt(max(outputs, inputs)): Moonshot AI, "Muon is Scalable for LLM Training"
  kSpectralUnclamped = 3,  // sqrt(outputs / inputs)
};

// Coefficients of a Newton-Schulz iteration (orthogonalizer.h).
struct NewtonSchulzStep {
  float a = 3.4445f;
  float b = -4.7750f;
  float c = 2.0315f;
};

// The same for all matrices of a parameter group.
struct MuonOptions {
  MuonRate rate = MuonRate::kOriginal;
  std::vector<NewtonSchulzStep> steps = std::vector<NewtonSchulzStep>(5);  // 1 to 99, in order
};

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_MUON_OPTIONS_H_
