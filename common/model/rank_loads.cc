#include "common/model/rank_loads.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "common/model/owned_matrices.h"
#include "common/model/plane_bytes.h"
#include "common/model/row_range.h"

namespace paramshard {

namespace {

int64_t BytesOfRows(const ParameterSpec& spec, int64_t rows) {
  return AllPlaneBytes(EncodingOf(spec.encoding), rows, spec.columns());
}

// Appends the parts of a parameter that have one owner each.
void AppendItems(const ParameterSpec& spec, bool is_small, int unit, int64_t index, std::vector<OwnedItem>& items) {
  const int64_t rows_of_item = is_small ? spec.rows() : RowsOfOneOwner(spec);
  for (int64_t row = 0; row < spec.rows(); row += rows_of_item) {
    const int64_t rows = std::min(rows_of_item, spec.rows() - row);
    items.push_back(
        {.unit = unit, .parameter = index, .work = WorkOfRows(spec, rows), .bytes = BytesOfRows(spec, rows)});
  }
}

}  // namespace

RankLoads::RankLoads(const ModelSpec& spec, int ranks) : differences_(ranks + 1, 0), bytes_(ranks) {
  std::vector<Small> small;
  std::vector<Owned> owned;
  std::vector<OwnedItem> items;
  int64_t total_bytes = 0;
  for (int unit = 0; unit < static_cast<int>(spec.units.size()); ++unit) {
    for (const ParameterSpec& parameter : spec.units[unit].parameters) {
      const auto index = static_cast<int64_t>(owners_.size());
      const bool is_small = IsSmall(parameter, spec.small_parameter_bytes);
      const int64_t bytes = BytesOfRows(parameter, parameter.rows());
      if (parameter.placement == Placement::kOwned) {
        const auto first_item = static_cast<int64_t>(items.size());
        AppendItems(parameter, is_small, unit, index, items);
        owned.push_back({&parameter, index, is_small, first_item, static_cast<int64_t>(items.size()) - first_item});
      } else if (is_small) {
        small.push_back({bytes, index});
      } else {
        AddLarge(parameter);
      }
      total_bytes += bytes;
      owners_.push_back(-1);
    }
  }
  owned_rows_.resize(owners_.size());
  std::partial_sum(differences_.begin(), differences_.end() - 1, bytes_.begin());
  AssignMatrices(owned, items, total_bytes);
  AssignOwners(std::move(small));
}

double RankLoads::Imbalance() const {
  const double mean = std::accumulate(bytes_.begin(), bytes_.end(), 0.0) / static_cast<double>(bytes_.size());
  if (mean == 0) return 1;
  return static_cast<double>(*std::max_element(bytes_.begin(), bytes_.end())) / mean;
}

void RankLoads::AddLarge(const ParameterSpec& spec) {
  const int ranks = static_cast<int>(bytes_.size());
  const Encoding encoding = EncodingOf(spec.encoding);
  const int64_t rows_per_rank = RowsPerRank(spec.rows(), GranuleRows(encoding.format), ranks);
  const auto bytes = [&](int64_t rows) { return AllPlaneBytes(encoding, rows, spec.columns()); };
  const int full = static_cast<int>(std::min<int64_t>(spec.rows() / rows_per_rank, ranks));
  AddToRanks(0, full, bytes(rows_per_rank));
  if (full == ranks) return;
  AddToRanks(full, full + 1, bytes(spec.rows() - full * rows_per_rank));
  AddToRanks(full + 1, ranks, bytes(0));
}

void RankLoads::AddToRanks(int begin, int end, int64_t bytes) {
  differences_[begin] += bytes;
  differences_[end] -= bytes;
}

void RankLoads::AssignMatrices(absl::Span<const Owned> parameters, absl::Span<const OwnedItem> items,
                               int64_t total_bytes) {
  std::vector<int> owners = ChooseOwners(items, bytes_, total_bytes);
  for (const Owned& parameter : parameters) {
    if (parameter.is_small) {
      const int owner = owners[parameter.first_item];
      owners_[parameter.index] = owner;
      bytes_[owner] += items[parameter.first_item].bytes;
    } else {
      AssignRows(parameter, absl::MakeSpan(owners).subspan(parameter.first_item, parameter.item_count));
    }
  }
}

// Items of a parameter are alike but for a shorter last one, so it counts how many an owner has and not which.
void RankLoads::AssignRows(const Owned& parameter, absl::Span<int> owners) {
  const ParameterSpec& spec = *parameter.spec;
  const int64_t rows_of_item = RowsOfOneOwner(spec);
  std::vector<OwnedRows>& all = owned_rows_[parameter.index];
  std::sort(owners.begin(), owners.end());
  int64_t end = 0;
  for (const int owner : owners) {
    if (all.empty() || all.back().rank != owner) all.push_back({owner, {.begin = end, .end = end}});
    end = std::min(end + rows_of_item, spec.rows());
    all.back().rows.end = end;
  }
  for (const OwnedRows& owned : all) bytes_[owned.rank] += BytesOfRows(spec, owned.rows.size());
}

void RankLoads::AssignOwners(std::vector<Small> small) {
  std::stable_sort(small.begin(), small.end(), [](const Small& a, const Small& b) { return a.bytes > b.bytes; });
  using Load = std::pair<int64_t, int>;  // bytes, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least_loaded;
  for (int rank = 0; rank < static_cast<int>(bytes_.size()); ++rank) {
    least_loaded.emplace(bytes_[rank], rank);
  }
  for (const Small& parameter : small) {
    const int rank = least_loaded.top().second;
    least_loaded.pop();
    owners_[parameter.index] = rank;
    bytes_[rank] += parameter.bytes;
    least_loaded.emplace(bytes_[rank], rank);
  }
}

}  // namespace paramshard
