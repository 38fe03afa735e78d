// The phases of a step, which decide what a gather brings.
#ifndef PARAMSHARD_PROTO_MODEL_PHASE_H_
#define PARAMSHARD_PROTO_MODEL_PHASE_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "kernels/formats/format.h"

namespace paramshard {

// A phase says which planes a gather brings: row-wise ones for the forward pass; for the backward pass column-wise
// ones where the format has them, else row-wise; both for units that stay gathered
// (reshard_after_forward = false). The numbers are sent.
enum class Phase : uint8_t { kForward = 1, kBackward = 2, kBoth = 3 };

inline constexpr std::array<Phase, 3> kPhases = {Phase::kForward, Phase::kBackward, Phase::kBoth};

// One value for each phase.
template <typename T>
class PerPhase {
 public:
  constexpr T& operator[](Phase phase) { return values_[Index(phase)]; }
  constexpr const T& operator[](Phase phase) const { return values_[Index(phase)]; }

 private:
  static constexpr size_t Index(Phase phase) { return static_cast<size_t>(phase) - 1; }

  std::array<T, kPhases.size()> values_{};
};

// False for a number that was cast to the type and is none.
bool IsPhase(Phase phase);

// "forward", "backward", "both"; "unknown" where !IsPhase().
absl::string_view PhaseName(Phase phase);

// The plane that a phase's products read, and whether a gather of the phase brings a plane.
Plane MainPlane(Format format, Phase phase);
bool Brings(Format format, Plane plane, Phase phase);

}  // namespace paramshard

#endif  // PARAMSHARD_PROTO_MODEL_PHASE_H_
