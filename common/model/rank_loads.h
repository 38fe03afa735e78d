// Plane bytes of each rank, and the choice of ranks for parameters that are not cut.
#ifndef PARAMSHARD_COMMON_MODEL_RANK_LOADS_H_
#define PARAMSHARD_COMMON_MODEL_RANK_LOADS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "common/model/owner_choice.h"
#include "common/model/row_range.h"

namespace paramshard {

// Plane bytes that a model's parameters put on each rank.
class RankLoads {
 public:
  // Counts the large parameters that are cut, chooses owners (owner_choice.h) for those of Placement::kOwned, then
  // gives every small one of the rest to the rank with the fewest bytes: the largest parameter first, of equal ones the
  // first in the model; of equally loaded ranks the lowest. Requires 1 <= ranks.
  RankLoads(const ModelSpec& spec, int ranks);

  // The rank of each small parameter, -1 for a large one, in the order of the model over all units.
  const std::vector<int>& owners() const { return owners_; }

  // The rows of each large parameter of Placement::kOwned, in the same order: ascending, in the order of ranks, without
  // empty ones. Nothing for other parameters.
  const std::vector<std::vector<OwnedRows>>& owned_rows() const { return owned_rows_; }

  // Plane bytes of each rank.
  const std::vector<int64_t>& bytes() const { return bytes_; }

  // Returns the most loaded rank's bytes over the mean of all ranks; 1 if there are no bytes.
  double Imbalance() const;

 private:
  struct Small {
    int64_t bytes;
    int64_t index;
  };

  // A parameter of Placement::kOwned, and its items in the list of all.
  struct Owned {
    const ParameterSpec* spec;
    int64_t index;
    bool is_small;
    int64_t first_item;
    int64_t item_count;
  };

  // Adds a large parameter to differences_: ranks with full extents, then at most one with fewer
  // rows, then empty ones.
  void AddLarge(const ParameterSpec& spec);
  void AddToRanks(int begin, int end, int64_t bytes);
  void AssignMatrices(absl::Span<const Owned> parameters, absl::Span<const OwnedItem> items, int64_t total_bytes);
  // Gives a large parameter's rows to the owners of its items, in the order of ranks.
  void AssignRows(const Owned& parameter, absl::Span<int> owners);
  void AssignOwners(std::vector<Small> small);

  // bytes_[r] - bytes_[r - 1], so that a parameter is counted in a few additions for any number of
  // ranks.
  std::vector<int64_t> differences_;
  std::vector<int64_t> bytes_;
  std::vector<int> owners_;
  std::vector<std::vector<OwnedRows>> owned_rows_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_RANK_LOADS_H_
