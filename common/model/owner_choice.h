// Choice of the ranks that own whole matrices.
#ifndef PARAMSHARD_COMMON_MODEL_OWNER_CHOICE_H_
#define PARAMSHARD_COMMON_MODEL_OWNER_CHOICE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace paramshard {

// Rows that one rank is to own.
struct OwnedItem {
  int unit = 0;           // of the model
  int64_t parameter = 0;  // in the model, over all units
  int64_t work = 0;
  int64_t bytes = 0;
};

// Returns the owner of each item. A rank's load is its share of all work or of all bytes, whichever is larger. The
// largest items come first, of equal ones the first in the list. An item goes to a rank whose load stays within 1/32 of
// the mean: to one with the fewest bytes of the same unit, so that all ranks take part in the gather of each unit; of
// these to the one with the smallest load, then to the lowest. Where no rank stays within it, the rank with the
// smallest load takes it. All is integer arithmetic: the same on every machine.
//
// `bytes` has what each rank holds already, `total_bytes` what all ranks will hold in the end. Takes time in proportion
// to items times ranks.
std::vector<int> ChooseOwners(absl::Span<const OwnedItem> items, absl::Span<const int64_t> bytes, int64_t total_bytes);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_OWNER_CHOICE_H_
