// The order in which a trainer gathers units, learned from one step and expected in the next.
#ifndef PARAMSHARD_CLIENT_INTERNAL_PREFETCH_PLAN_H_
#define PARAMSHARD_CLIENT_INTERNAL_PREFETCH_PLAN_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "client/client.h"

namespace paramshard::internal {

struct PlannedGather {
  int unit = 0;
  Phase phase = Phase::kForward;

  friend bool operator==(const PlannedGather& a, const PlannedGather& b) {
    return a.unit == b.unit && a.phase == b.phase;
  }
};

// A step lies between two commits. The plan is the recording of the last one. An unexpected gather
// ends the expectations for this step and restarts the recording with itself: earlier gathers (an
// evaluation, say) are not part of a step. Gathers past the plan's end are recorded too.
class PrefetchPlan {
 public:
  // Records the trainer's next gather. Returns true if it was the expected one.
  bool Advance(const PlannedGather& gather);

  // Returns the gather that is expected `ahead` gathers after the next one (0: the next one), if any.
  std::optional<PlannedGather> Expected(size_t ahead) const;

  void EndStep();
  // Begins the step anew: forgets its recording.
  void RestartStep();

 private:
  std::vector<PlannedGather> plan_;
  std::vector<PlannedGather> recording_;
  size_t position_ = 0;  // in plan_
  bool following_ = false;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_PREFETCH_PLAN_H_
