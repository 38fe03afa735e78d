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

// A step is what lies between two commits. The plan is the recording of the last one. A gather that
// is not the expected one ends the expectations for this step and restarts the recording with
// itself: what came before it (an evaluation, say) is not part of a step. Gathers past the plan's
// end are recorded on.
class PrefetchPlan {
 public:
  // Notes the trainer's next gather; whether it was the expected one.
  bool Advance(const PlannedGather& gather);

  // What is expected `ahead` gathers after the next one (0: the next one); nullopt when nothing is.
  std::optional<PlannedGather> Expected(size_t ahead) const;

  void EndStep();
  // The step begins anew: what was recorded of it counts no more.
  void RestartStep();

 private:
  std::vector<PlannedGather> plan_;
  std::vector<PlannedGather> recording_;
  size_t position_ = 0;  // in plan_
  bool following_ = false;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_PREFETCH_PLAN_H_
