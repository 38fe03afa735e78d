#include "server/data_plane/sum_chain.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/base/status_macros.h"

namespace paramshard::server {

// Sources after the first ones are added one by one: (partial + a) + b differs from partial + (a + b), and a sum of
// sources of one type takes no partial sum of another type.
absl::Status SumInChain(DeviceQueue& queue, absl::Span<const SumTask> sums, int most) {
  size_t longest = 0;
  std::vector<SumTask> part(sums.begin(), sums.end());
  for (SumTask& sum : part) {
    longest = std::max(longest, sum.sources.size());
    sum.sources.resize(std::min(sum.sources.size(), static_cast<size_t>(most)));
  }
  RETURN_IF_ERROR(queue.Sum(part));
  for (size_t next = most; next < longest; ++next) {
    part.clear();
    for (const SumTask& sum : sums) {
      if (next >= sum.sources.size()) continue;
      part.push_back({{sum.sources[next]}, sum.type, sum.count, /*overwrite=*/false, sum.accumulator});
    }
    RETURN_IF_ERROR(queue.Sum(part));
  }
  return absl::OkStatus();
}

}  // namespace paramshard::server
