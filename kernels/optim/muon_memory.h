// Memory that Muon's steps of a shard take on its device besides the state, for updates and for their products. Devices
// allocate what these functions return, and budgets count it before anything is there.

#ifndef PARAMSHARD_KERNELS_OPTIM_MUON_MEMORY_H_
#define PARAMSHARD_KERNELS_OPTIM_MUON_MEMORY_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "kernels/formats/format_id.h"
#include "kernels/optim/muon.h"
#include "kernels/optim/state_bands.h"
#include "kernels/optim/update_groups.h"

namespace paramshard {

struct MuonExtent {
  MatrixShape shape;
  std::optional<MuonMatrices> matrices;  // null where Muon does not make the steps
};

// Zeros if Muon steps no extent.
struct MuonMemory {
  UpdateGroups updates;       // of BF16 elements
  int64_t product_bytes = 0;  // for the orthogonalizer

  int64_t UpdateBytes() const { return updates.elements * static_cast<int64_t>(sizeof(uint16_t)); }
  int64_t Total() const { return UpdateBytes() + product_bytes; }
};

// In host memory each extent is a group of its own, and one update is there at a time.
MuonMemory HostMuonMemory(absl::Span<const MuonExtent> extents);

// On a GPU, without memory of the engine that multiplies. See GroupUpdates().
MuonMemory GpuMuonMemory(absl::Span<const MuonExtent> extents, absl::Span<const BandStart> bands);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_MUON_MEMORY_H_
