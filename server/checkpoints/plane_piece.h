// A piece of a plane, as checkpoints name it.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_PLANE_PIECE_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_PLANE_PIECE_H_

#include <vector>

#include "common/checkpoint/tensor_key.h"
#include "server/device/host_view.h"
#include "server/state/shard_planes.h"

namespace paramshard::server {

// Returns the data, the scales or the amax of a plane in `planes`, which PlaneBytes returned.
inline const HostView& PieceOf(const std::vector<PlaneViews>& planes, const checkpoint::PlaneForm& form) {
  const PlaneViews& plane = planes[form.plane == Plane::kRowWise ? 0 : 1];
  switch (form.piece) {
    case checkpoint::PlanePiece::kData:
      return plane.data;
    case checkpoint::PlanePiece::kScales:
      return plane.scales;
    case checkpoint::PlanePiece::kAmax:
      break;
  }
  return plane.amax;
}

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_PLANE_PIECE_H_
