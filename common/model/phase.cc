#include "common/model/phase.h"

#include <algorithm>
#include "kernels/formats/format.h"

namespace paramshard {

bool IsPhase(Phase phase) { return std::find(kPhases.begin(), kPhases.end(), phase) != kPhases.end(); }

absl::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kBoth:
      return "both";
  }
  return "unknown";
}

Plane MainPlane(Format format, Phase phase) {
  return phase == Phase::kBackward && HasColumnPlane(format) ? Plane::kColumnWise : Plane::kRowWise;
}

bool Brings(Format format, Plane plane, Phase phase) {
  if (phase != Phase::kBoth) return plane == MainPlane(format, phase);
  return plane == Plane::kRowWise || HasColumnPlane(format);
}

}  // namespace paramshard
