// Plane bytes of each rank, and the choice of ranks for small parameters.
#ifndef PARAMSHARD_COMMON_MODEL_RANK_LOADS_H_
#define PARAMSHARD_COMMON_MODEL_RANK_LOADS_H_

#include <cstdint>
#include <vector>

#include "common/model/model_spec.h"

namespace paramshard {

// Plane bytes that a model's large parameters and owners put on each rank.
class RankLoads {
 public:
  // Counts the large parameters of the spec, then gives every small one to the least loaded rank:
  // the largest parameter first, of equal ones the first in the model; of equally loaded ranks the
  // lowest. Requires 1 <= ranks.
  RankLoads(const ModelSpec& spec, int ranks);

  // The rank of each small parameter, -1 for a large one, in the order of the model over all units.
  const std::vector<int>& owners() const { return owners_; }

  // Plane bytes of each rank.
  const std::vector<int64_t>& bytes() const { return bytes_; }

  // Returns the most loaded rank's bytes over the mean of all ranks; 1 if there are no bytes.
  double Imbalance() const;

 private:
  struct Small {
    int64_t bytes;
    int64_t index;
  };

  // Adds a large parameter to differences_: ranks with full extents, then at most one with fewer
  // rows, then empty ones.
  void AddLarge(const ParameterSpec& spec);
  void AddToRanks(int begin, int end, int64_t bytes);
  void AssignOwners(std::vector<Small> small);

  // bytes_[r] - bytes_[r - 1], so that a parameter is counted in a few additions for any number of
  // ranks.
  std::vector<int64_t> differences_;
  std::vector<int64_t> bytes_;
  std::vector<int> owners_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_RANK_LOADS_H_
