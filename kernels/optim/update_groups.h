// Groups of extents whose Muon updates a GPU makes together, and the memory of the updates.
//
// A group is neighbours, so that their products fill the GPU. A step by bands (state_bands.h) makes the updates of a group
// at the first band with rows of it, and needs them to the last one: groups that have no band in common share memory.

#ifndef PARAMSHARD_KERNELS_OPTIM_UPDATE_GROUPS_H_
#define PARAMSHARD_KERNELS_OPTIM_UPDATE_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/optim/state_bands.h"

namespace paramshard {

// Most elements of a group of more than one extent: about a layer of a model with one or two billion parameters.
inline constexpr int64_t kMostGroupElements = int64_t{64} << 20;

struct UpdateGroups {
  // Elements that an update begins at a multiple of.
  static constexpr int64_t kAlignment = 128;

  std::vector<std::vector<size_t>> groups;  // indices of extents
  std::vector<int64_t> offsets;             // of an extent's update, in elements; 0 for extents that have none
  int64_t elements = 0;                     // of the memory
};

// `has_update` has an entry for each extent. Without bands the updates of all groups are there at the same time.
UpdateGroups GroupUpdates(absl::Span<const MatrixShape> extents, const std::vector<bool>& has_update,
                          absl::Span<const BandStart> bands, int64_t most_group_elements = kMostGroupElements);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_UPDATE_GROUPS_H_
