// Places of a model's planes, before and after they are gathered.
#ifndef PARAMSHARD_COMMON_MODEL_PLANE_PLACES_H_
#define PARAMSHARD_COMMON_MODEL_PLANE_PLACES_H_

#include <cstdint>
#include <vector>

#include "common/model/layout.h"
#include "common/model/phase.h"

namespace paramshard {

struct ByteRange {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// Place of one plane of one parameter. The scales' ranges, in order, are the compact scales of the
// whole matrix. Every rank has a number of the whole tensor; it is read once: from the owner, or from
// rank 0 of the group where the parameter is cut.
struct PlanePlace {
  ByteRange data;
  std::vector<ByteRange> scales;
  ByteRange amax;  // 0 bytes in formats without an amax
};

// Return the place of a plane in the slot of a gather of `phase`, and, for a group of one rank, in
// its arena. Require that the parameter has the plane (and the phase brings it).
PlanePlace PlaceInSlot(const Layout& layout, int unit, int parameter, Plane plane, Phase phase);
PlanePlace PlaceInArena(const Layout& layout, int unit, int parameter, Plane plane);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_PLANE_PLACES_H_
