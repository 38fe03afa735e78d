#include "server/state/shard_extents.h"

#include <algorithm>

#include "kernels/formats/format.h"

namespace paramshard::server {

ShardExtents::ShardExtents(const ModelSpec& spec, const Layout& layout, int rank, const MovePolicy& policy)
    : spec_(spec), layout_(layout), rank_(rank), placement_(ShardPlacement::Of(spec, layout, rank, policy)) {
  int64_t parameters = 0;
  for (const UnitSpec& unit : spec.units) {
    indices_.emplace_back(unit.parameters.size(), -1);
    unit_begin_.push_back(parameters);
    parameters += static_cast<int64_t>(unit.parameters.size());
  }
  for (int i = 0; i < size(); ++i) indices_[(*this)[i].unit][(*this)[i].parameter] = i;
}

const ShardExtent* ShardExtents::Find(int unit, int parameter) const {
  const int index = indices_[unit][parameter];
  return index < 0 ? nullptr : &(*this)[index];
}

int64_t ShardExtents::OptimizerSize(const ShardExtent& extent) const {
  return extent.StateBytes() + extent.AccumulatorBytes();
}

std::vector<ExtentPart> ShardExtents::Parts(const ShardExtent& extent) const {
  const int64_t columns = Spec(extent).columns();
  const int64_t granule = GranuleRows(EncodingOf(Spec(extent).encoding).format);
  const int64_t rows_of_a_part = std::max(granule, kElementsOfAPart / columns / granule * granule);
  std::vector<ExtentPart> parts;
  for (int64_t row = extent.rows.begin; row < extent.rows.end; row += rows_of_a_part) {
    const RowRange rows{row, std::min(row + rows_of_a_part, extent.rows.end)};
    parts.push_back({.rows = rows, .first_column = 0, .columns = columns});
  }
  return parts;
}

}  // namespace paramshard::server
