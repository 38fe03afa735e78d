// Extents of one rank's part of a model, and where everything that belongs to them is placed.
#ifndef PARAMSHARD_SERVER_STATE_SHARD_EXTENTS_H_
#define PARAMSHARD_SERVER_STATE_SHARD_EXTENTS_H_

#include <cstdint>
#include <vector>

#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "server/state/shard_placement.h"

namespace paramshard::server {

// Largest number of elements that readers of whole extents hold at a time: 4 MiB in fp32.
inline constexpr int64_t kElementsOfAPart = 1 << 20;

// Whole rows of an extent, or a part of one row that begins at a multiple of kMomentBlockSize and ends at one or with
// the row: what lies in one piece in every array in which a tensor is stored.
struct ExtentPart {
  RowRange rows;  // of the parameter
  int64_t first_column = 0;
  int64_t columns = 0;
};

inline ExtentPart Whole(const ShardExtent& extent) {
  return {.rows = extent.rows, .first_column = 0, .columns = extent.columns()};
}

// Constant. Extents of trainable parameters come first, in the order of the model, then extents of frozen ones.
class ShardExtents {
 public:
  // `spec` and `layout` outlive this; `rank` is the rank in the shard group.
  ShardExtents(const ModelSpec& spec, const Layout& layout, int rank, const MovePolicy& policy);

  int size() const { return static_cast<int>(placement_.extents.size()); }
  int trainable_count() const { return placement_.trainable_count; }
  const ShardExtent& operator[](int index) const { return placement_.extents[index]; }
  auto begin() const { return placement_.extents.begin(); }
  auto end() const { return placement_.extents.end(); }
  // Returns the extent of a parameter, or null if the shard owns none of it.
  const ShardExtent* Find(int unit, int parameter) const;
  // Returns the index of each parameter's extent, or -1.
  const std::vector<int>& IndicesOf(int unit) const { return indices_[unit]; }
  int IndexOf(const ShardExtent& extent) const { return indices_[extent.unit][extent.parameter]; }

  const ModelSpec& spec() const { return spec_; }
  const Layout& layout() const { return layout_; }
  const ShardPlacement& placement() const { return placement_; }
  const ShardBytes& bytes() const { return placement_.bytes; }
  const ParameterSpec& Spec(const ShardExtent& extent) const {
    return spec_.units[extent.unit].parameters[extent.parameter];
  }
  bool HasMaster(const ShardExtent& extent) const { return Spec(extent).master_type.has_value(); }
  bool HasRemainder(const ShardExtent& extent) const { return Spec(extent).master_type == MasterType::kBF16Remainder; }
  ArenaPlace PlaceInArena(const ShardExtent& extent, Plane plane) const {
    return layout_.PlaceInArena(extent.unit, extent.parameter, plane, rank_);
  }
  // Returns a parameter's place in the whole model.
  int64_t PlaceOf(const ShardExtent& extent) const { return unit_begin_[extent.unit] + extent.parameter; }
  // Returns the bytes of masters, moments and gradients.
  int64_t OptimizerSize(const ShardExtent& extent) const;
  // Cuts an extent into parts of whole rows and blocks, whose planes lie in one piece too: readers need memory for one
  // part, however large the extent is. A part has at least the rows of a block.
  std::vector<ExtentPart> Parts(const ShardExtent& extent) const;

 private:
  const ModelSpec& spec_;
  const Layout& layout_;
  int rank_;
  ShardPlacement placement_;
  std::vector<std::vector<int>> indices_;  // [unit][parameter]
  std::vector<int64_t> unit_begin_;        // parameters of the model before each unit
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_SHARD_EXTENTS_H_
