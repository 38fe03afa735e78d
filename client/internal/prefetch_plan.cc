#include "client/internal/prefetch_plan.h"

namespace paramshard::internal {

bool PrefetchPlan::Advance(const PlannedGather& gather) {
  const bool expected = Expected(0) == gather;
  if (!expected && Expected(0).has_value()) {
    following_ = false;
    recording_.clear();
  }
  if (expected) ++position_;
  recording_.push_back(gather);
  return expected;
}

std::optional<PlannedGather> PrefetchPlan::Expected(size_t ahead) const {
  if (!following_ || position_ + ahead >= plan_.size()) return std::nullopt;
  return plan_[position_ + ahead];
}

void PrefetchPlan::EndStep() {
  plan_ = recording_;
  RestartStep();
}

void PrefetchPlan::RestartStep() {
  recording_.clear();
  position_ = 0;
  following_ = !plan_.empty();
}

}  // namespace paramshard::internal
