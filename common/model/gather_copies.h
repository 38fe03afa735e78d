// The copies that a gather makes within a trainer's own memory.
#ifndef PARAMSHARD_COMMON_MODEL_GATHER_COPIES_H_
#define PARAMSHARD_COMMON_MODEL_GATHER_COPIES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/layout.h"
#include "common/model/phase.h"
#include "common/model/plane_places.h"

namespace paramshard {

// The copies of a gather of one phase of one unit, on one rank, worked out once. Immutable.
class GatherCopies {
 public:
  GatherCopies() = default;
  GatherCopies(const Layout& layout, int unit, Phase phase, int rank);

  // Copies of this rank's own pieces, from the planes to the slot.
  const std::vector<PieceCopy>& own_pieces() const { return own_pieces_; }

  // Copies that put together the scales of several ranks, from the slot to a scratch beside it. Make them after the own
  // pieces have landed and all ranks' pieces have arrived.
  const std::vector<PieceCopy>& scales() const { return scales_; }
  int64_t scratch_bytes() const { return scratch_bytes_; }
  // Returns a plane's whole scales in the scratch; nullopt if they lie in one part in the slot, or there are none.
  std::optional<ByteRange> AssembledScales(int parameter, Plane plane) const;

 private:
  void AppendScales(const Layout& layout, int unit, int parameter, Plane plane, Phase phase);

  std::vector<PieceCopy> own_pieces_;
  std::vector<PieceCopy> scales_;
  int64_t scratch_bytes_ = 0;
  std::vector<std::array<std::optional<ByteRange>, 2>> assembled_;  // by parameter and plane
};

// The copies of every unit and phase.
using UnitGatherCopies = std::vector<PerPhase<GatherCopies>>;
UnitGatherCopies AllGatherCopies(const Layout& layout, int rank);

// Returns, by slot, the scratch that is taken by the largest of the gathers that the slot may hold.
std::vector<int64_t> ScratchBytes(const Layout& layout, const UnitGatherCopies& copies);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_GATHER_COPIES_H_
