// The phases of a step, which determine what a gather brings.
#ifndef PARAMSHARD_COMMON_MODEL_PHASE_H_
#define PARAMSHARD_COMMON_MODEL_PHASE_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "kernels/formats/format_id.h"

namespace paramshard {

// Phase of a gather. It determines the planes: row-wise for the forward pass; column-wise for the backward pass if the
// format has them, else row-wise; both for units that stay gathered (reshard_after_forward = false). The numbers are
// sent.
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

// Returns false for a number that was cast to the type and is not a phase.
bool IsPhase(Phase phase);

// "forward", "backward", "both"; "unknown" if !IsPhase().
absl::string_view PhaseName(Phase phase);

// MainPlane returns the plane that a phase's products read. Brings returns true if a gather of the phase brings the
// plane.
Plane MainPlane(Format format, Phase phase);
bool Brings(Format format, Plane plane, Phase phase);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_PHASE_H_
