#include "common/model/rank_loads.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "common/model/plane_bytes.h"
#include "common/model/row_range.h"

namespace paramshard {

RankLoads::RankLoads(const ModelSpec& spec, int ranks) : differences_(ranks + 1, 0), bytes_(ranks) {
  std::vector<Small> small;
  for (const UnitSpec& unit : spec.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (IsSmall(parameter, spec.small_parameter_bytes)) {
        small.push_back({AllPlaneBytes(EncodingOf(parameter.encoding), parameter.rows(), parameter.columns()),
                         static_cast<int64_t>(owners_.size())});
      } else {
        AddLarge(parameter);
      }
      owners_.push_back(-1);
    }
  }
  std::partial_sum(differences_.begin(), differences_.end() - 1, bytes_.begin());
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
