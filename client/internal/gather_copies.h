// The copies that one gather makes within a trainer's own memory.
#ifndef PARAMSHARD_CLIENT_INTERNAL_GATHER_COPIES_H_
#define PARAMSHARD_CLIENT_INTERNAL_GATHER_COPIES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "client/client.h"
#include "client/internal/layout_view.h"

namespace paramshard::internal {

// The copies of one use of one unit, worked out once. Immutable.
class GatherCopies {
 public:
  GatherCopies(const LayoutView& layout, int unit, Phase phase);

  // From the planes to the slot: this rank's own pieces.
  const std::vector<PieceCopy>& own_pieces() const { return own_pieces_; }

  // From the slot to a scratch beside it: the scales that come from several ranks, put together. After own pieces have
  // landed and all ranks' pieces have arrived.
  const std::vector<PieceCopy>& scales() const { return scales_; }
  int64_t scratch_bytes() const { return scratch_bytes_; }
  // A plane's whole scales in that scratch; nullopt where they lie in one part in the slot, or there are none.
  std::optional<ByteRange> AssembledScales(int parameter, Plane plane) const;

 private:
  void AppendScales(const LayoutView& layout, int unit, int parameter, Plane plane, Phase phase);

  std::vector<PieceCopy> own_pieces_;
  std::vector<PieceCopy> scales_;
  int64_t scratch_bytes_ = 0;
  std::vector<std::array<std::optional<ByteRange>, 2>> assembled_;  // by parameter and plane
};

// By slot: the scratch that the largest of the gathers that it may hold takes. `copies` holds every unit's three uses,
// in the order of Phase.
std::vector<int64_t> ScratchBytes(const LayoutView& layout, const std::vector<GatherCopies>& copies);

// The index in such a list.
inline int CopiesIndex(int unit, Phase phase) { return 3 * unit + static_cast<int>(phase) - 1; }

// The list itself.
std::vector<GatherCopies> AllGatherCopies(const LayoutView& layout);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_GATHER_COPIES_H_
