#include "kernels/optim/update_groups.h"

#include <algorithm>

#include "kernels/base/align.h"

namespace paramshard {
namespace {

class Grouping {
 public:
  Grouping(absl::Span<const MatrixShape> extents, absl::Span<const BandStart> bands)
      : extents_(extents), bands_(bands) {}

  int64_t SizeOf(size_t extent) const {
    return AlignUp(extents_[extent].rows * extents_[extent].cols, UpdateGroups::kAlignment);
  }

  int64_t SizeOf(const std::vector<size_t>& group) const {
    int64_t size = 0;
    for (const size_t extent : group) size += SizeOf(extent);
    return size;
  }

  bool HaveCommonBand(const std::vector<size_t>& one, const std::vector<size_t>& other) const {
    if (bands_.empty()) return true;
    for (int band = 0; band < static_cast<int>(bands_.size()); ++band) {
      if (HasRows(one, band) && HasRows(other, band)) return true;
    }
    return false;
  }

 private:
  bool HasRows(const std::vector<size_t>& group, int band) const {
    return std::any_of(group.begin(), group.end(), [&](size_t extent) {
      return RowsInBand(bands_, band, static_cast<int64_t>(extent), extents_[extent].rows).count > 0;
    });
  }

  const absl::Span<const MatrixShape> extents_;
  const absl::Span<const BandStart> bands_;
};

// Each group takes the first place that no group before it has which is needed at the same time.
void Place(const Grouping& grouping, UpdateGroups& updates) {
  struct Taken {
    const std::vector<size_t>* group;
    int64_t begin;
    int64_t end;
  };
  std::vector<Taken> places;  // in the order of memory
  for (const std::vector<size_t>& group : updates.groups) {
    places.erase(std::remove_if(places.begin(), places.end(),
                                [&](const Taken& taken) { return !grouping.HaveCommonBand(*taken.group, group); }),
                 places.end());
    const int64_t size = grouping.SizeOf(group);
    int64_t begin = 0;
    auto next = places.begin();
    for (; next != places.end() && begin + size > next->begin; ++next) begin = next->end;
    places.insert(next, {&group, begin, begin + size});
    updates.elements = std::max(updates.elements, begin + size);
    for (const size_t extent : group) {
      updates.offsets[extent] = begin;
      begin += grouping.SizeOf(extent);
    }
  }
}

}  // namespace

UpdateGroups GroupUpdates(absl::Span<const MatrixShape> extents, const std::vector<bool>& has_update,
                          absl::Span<const BandStart> bands, int64_t most_group_elements) {
  const Grouping grouping(extents, bands);
  UpdateGroups updates;
  updates.offsets.resize(extents.size(), 0);
  int64_t elements = 0;
  for (size_t extent = 0; extent < extents.size(); ++extent) {
    if (!has_update[extent]) continue;
    elements += grouping.SizeOf(extent);
    if (updates.groups.empty() || elements > most_group_elements) {
      updates.groups.emplace_back();
      elements = grouping.SizeOf(extent);
    }
    updates.groups.back().push_back(extent);
  }
  Place(grouping, updates);
  return updates;
}

}  // namespace paramshard
