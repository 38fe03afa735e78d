// The place of every piece of a model: a pure function of (model, shard size).
//
// Large parameters are cut on rows in granules, with torch.chunk's semantics: T = ceil(M /
// granule), c = ceil(T / ranks), rank r owns rows [min(r*c*granule, M), min((r+1)*c*granule, M)).
// Small ones (the data and scales of all their planes take fewer than small_parameter_bytes) live
// whole on one rank: the largest first, each on the rank that has the fewest plane bytes so far,
// extents of large parameters included. Large parameters of Placement::kOwned are not cut: rank_loads.h chooses the
// owners of their matrices. A rank's matrices of a parameter are neighbours, so that it has one extent of it, or none.
// A single rank is not a special case. Two kinds of memory
// share one order of pieces:
//
// * A rank's ARENA of planes: for each unit at `arena_offset`, the data extents of its large
//   parameters (every region at a multiple of 256 bytes, sized for the largest extent), then one
//   small extent. Behind all units, at places that differ by rank, the rank's owned extents, each plane in one piece
//   (PackedPlane) at a multiple of 256.
// * A SLOT of a phase (forward, backward, both): for each large parameter and plane of the phase, a
//   region of `ranks` equal data extents (so the matrix is contiguous), or the whole plane of an owned parameter in one
//   piece, with scales and amax; then `ranks` small extents of the phase. Extents are sized for the largest: where ranks do not divide the granules a region
//   is longer than the matrix, and no gather writes what comes after it.
//
// A SMALL EXTENT holds, compact, in three runs: [row-wise pieces of parameters that have
// column-wise planes | pieces of all others | column-wise pieces]. Pieces are scales of the rank's
// extents of large parameters (first in a run, at offsets equal on all ranks, sized for the largest
// extent) and whole small parameters that the rank owns (data, then scales), scales with the amax
// that belongs to them. Forward brings the
// first two runs, backward the last two, both all three: each phase is one contiguous copy. Run
// starts are multiples of 256 bytes and equal on all ranks. Pieces inside a run start at multiples
// of 16 bytes.
//
// SLOTS are chosen by the client. A unit with reshard_after_forward takes the lowest free slot of
// the ring, slots [0, gather_slots), that has the bytes of the phase (forward or backward; a gather
// of both is for resident units, and the ring need not have room for it). Any such unit that is not
// large fits every slot of the ring; large ones fit the last large_gather_slots only, and no more of them
// can be held at a time. A resident unit takes its own slot. For gradients it is the gradient
// slot with gradient_bytes that was pushed longest ago, by the same two classes.
#ifndef PARAMSHARD_COMMON_MODEL_LAYOUT_H_
#define PARAMSHARD_COMMON_MODEL_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/model/limits.h"
#include "common/model/model_spec.h"
#include "common/model/phase.h"
#include "common/model/row_range.h"

namespace paramshard {

class RankLoads;

inline constexpr int64_t kRegionAlignment = 256;

struct PlaneLayout {
  // Large parameters that are cut; 0 and -1 for others.
  int64_t data_stride = 0;    // bytes of the largest extent; rank r's extent begins at r * data_stride in the region
  int64_t arena_offset = -1;  // of the rank's own extent, from the unit's arena_offset
  // Offset of the region of a large parameter, from the slot's start; null if the phase lacks the plane.
  PerPhase<std::optional<int64_t>> slot_offset;
  // Small parameters, on their owner; -1 for large ones.
  int64_t small_data_offset = -1;  // within the small extent (of Phase::kBoth)
  // Small parameters and those that are cut; -1 for others, and without scales.
  int64_t scale_offset = -1;  // within the small extent (of Phase::kBoth)
  // Offset of the amax behind the scales, a multiple of 4; -1 for formats without an amax. Every extent,
  // also an empty one, has the tensor's amax, and a scale of the whole tensor.
  int64_t amax_offset = -1;
};

// Whole matrices of a large parameter of Placement::kOwned, and their place on the owner.
struct OwnedExtent {
  int rank = 0;
  RowRange rows;
  // Offsets of the packed planes in the owner's arena; -1 without a column-wise plane.
  int64_t row_wise_offset = 0;
  int64_t column_wise_offset = -1;
  int64_t landing_offset = 0;  // in the owner's landing area
};

struct ParameterLayout {
  int64_t rows_per_rank = 0;  // c * granule, which may exceed all rows; 0 for parameters that are not cut
  std::optional<int> owner;   // small parameters
  // Large parameters of Placement::kOwned: ascending in ranks and rows, without empty ones. Empty for others.
  std::vector<OwnedExtent> owned;
  PlaneLayout row_wise;
  std::optional<PlaneLayout> column_wise;
  // Trainable parameters only.
  int64_t gradient_offset = 0;  // of rows x columns in a gradient slot; a multiple of 256
  // Place of the rank's own rows in the landing area: a multiple of 256, equal on all ranks; 0 for owned parameters.
  int64_t landing_offset = 0;
};

// The part of the small extent that a gather of a phase brings.
struct SmallRun {
  int64_t begin = 0;        // within the small extent
  int64_t bytes = 0;        // per rank; a multiple of 256
  int64_t slot_offset = 0;  // rank r's copy begins at slot_offset + r * bytes
};

struct UnitLayout {
  std::vector<ParameterLayout> parameters;
  int64_t arena_offset = 0;
  int64_t small_extent_offset = 0;  // within the unit's part of the arena
  int64_t arena_bytes = 0;
  PerPhase<SmallRun> small;
  PerPhase<int64_t> slot_bytes;
  int64_t gradient_bytes = 0;  // 0 without trainable parameters: such a unit is not pushed
  std::optional<int> resident_slot;
};

// A copy of a run of bytes from one memory to another. In a gather, a rank copies arena[source, source + bytes) to
// slot[target, target + bytes), with source from the start of the arena and target from the start of the slot.
struct PieceCopy {
  int64_t source = 0;
  int64_t target = 0;
  int64_t bytes = 0;
};

// Offsets of a rank's extent in one plane, from the start of its arena; -1 for what the format does not have.
struct ArenaPlace {
  int64_t data = -1;
  int64_t scales = -1;
  int64_t amax = -1;
};

// The rows of one parameter's gradient that one rank owns, in elements of the parameter's matrix.
struct GradientSlice {
  int parameter = 0;
  int64_t slot_offset = 0;  // bytes, in a gradient slot
  int64_t elements = 0;
  int64_t landing_offset = 0;  // bytes, in the rank's landing area
};

// Immutable. Units, parameters (within their unit) and ranks (within the shard group) are indices.
class Layout {
 public:
  // Computes the layout. Requires 1 <= ranks <= kMaxShardSize and a spec of ParseModelSpec, whose
  // sizes do not overflow int64.
  Layout(ModelSpec spec, int ranks);

  const ModelSpec& spec() const { return spec_; }
  int ranks() const { return ranks_; }
  const std::vector<UnitLayout>& units() const { return units_; }
  int64_t arena_bytes(int rank) const { return arena_bytes_ + owned_arena_bytes_[rank]; }

  // Returns the rows that a rank owns; empty extents are normal. The owner of a small parameter has all rows.
  RowRange Extent(int unit, int parameter, int rank) const;
  // Returns where they lie in the rank's arena. Requires that the parameter has the plane and the rank owns rows.
  ArenaPlace PlaceInArena(int unit, int parameter, Plane plane, int rank) const;

  // Returns the pieces that a rank contributes to a gather, in slot order, without empty ones. One
  // entry for each non-empty data extent (its bytes, without padding) and one for the small run
  // (equally long on every rank, with padding). A plane of which the rank owns all is one entry, scales included;
  // where it owns a part of the matrices, data and scales are two, and the last owner adds the amax.
  std::vector<PieceCopy> Pieces(int unit, Phase phase, int rank) const;

  // Returns the bytes that all ranks contribute together, with the padding of their small extents.
  int64_t GatheredBytes(int unit, Phase phase) const;

  // Returns the slices of a unit's gradients that a rank owns, in parameter order, without empty slices and frozen
  // parameters.
  std::vector<GradientSlice> Slices(int unit, int rank) const;

  // Returns the copies by which a rank lands its own slices, without `absent_parameters` (ascending): from a gradient
  // slot to the landing area, both in the slots memory.
  std::vector<PieceCopy> LandingCopies(int unit, int rank, int gradient_slot,
                                       absl::Span<const int> absent_parameters) const;

  // Slots: gather slots in two size classes (units larger than twice the median share the last slots of the ring: see
  // slot_sizes.h), then one slot for each resident unit. The ring is sized for units with reshard_after_forward;
  // without such units its slots have no bytes. Gradient slots are sized the same way for all units with trainable
  // parameters. Offsets are multiples of 4096 in one memory of slots_bytes(), which is never empty. Gather slots of a
  // single rank, which reads its planes where they are, have a size and no memory.
  const std::vector<int64_t>& slot_offsets() const { return slot_offsets_; }
  const std::vector<int64_t>& slot_bytes() const { return slot_bytes_; }
  const std::vector<int64_t>& gradient_slot_offsets() const { return gradient_slot_offsets_; }
  const std::vector<int64_t>& gradient_slot_bytes() const { return gradient_slot_bytes_; }
  int64_t slots_bytes() const { return slots_bytes_; }
  // Number of the ring's slots, which come first. Any unit that is not resident may take a slot that it fits.
  int ring_slots() const { return spec_.gather_slots; }
  // Bytes of the landing area behind the slots, used where sums wait for the commit. For every parameter it has room
  // for the own gradients of the rank that has the most rows, and behind these for the rank's owned extents.
  int64_t landing_bytes(int rank) const { return landing_bytes_ + owned_landing_bytes_[rank]; }

  // Returns the most loaded rank's plane bytes over the mean of all ranks; 1 for an empty model.
  double Imbalance() const { return imbalance_; }
  // Returns the plane bytes (data and scales, all planes) of one extent.
  int64_t PlaneBytes(int unit, int parameter, int rank) const;

 private:
  const ParameterSpec& Spec(int unit, int parameter) const { return spec_.units[unit].parameters[parameter]; }
  // Appends what a rank contributes of an owned parameter.
  void AppendOwnedPieces(int unit, int parameter, Phase phase, int rank, std::vector<PieceCopy>& pieces) const;

  void PlaceUnits(const RankLoads& loads);
  void PlaceOwned();
  void PlaceGatherSlots();
  void PlaceGradientSlots();
  void PlaceLanding();
  // Appends slots to the memory and returns their offsets.
  std::vector<int64_t> AppendSlots(const std::vector<int64_t>& sizes);

  ModelSpec spec_;
  int ranks_;
  double imbalance_ = 1;
  std::vector<UnitLayout> units_;
  int64_t arena_bytes_ = 0;
  std::vector<int64_t> slot_offsets_, slot_bytes_, gradient_slot_offsets_, gradient_slot_bytes_;
  int64_t slots_bytes_ = 0;
  int64_t landing_bytes_ = 0;
  // Bytes behind these two of the extents that each rank owns.
  std::vector<int64_t> owned_arena_bytes_, owned_landing_bytes_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_LAYOUT_H_
