#include "server/cluster/healing_order.h"

#include <algorithm>

#include "absl/random/random.h"
#include "absl/strings/str_format.h"

namespace paramshard::server {

bool HealingOrder::IsOf(const ModelReport& report) const {
  const bool is_known = std::find(histories_.begin(), histories_.end(), report.history_id) != histories_.end();
  return report.lost.ok() && !report.fresh && is_known && report.commit_number >= commit_number_;
}

void HealingOrder::Begin(int64_t epoch, const std::string& history_id) {
  epoch_ = epoch;
  if (histories_.back() != history_id) histories_.push_back(history_id);
}

bool HealingOrder::HasBegun(const ModelReport& report) const {
  return epoch_ > 0 && report.untouched && report.history_id == histories_.back();
}

std::string DrawHistoryId() {
  absl::BitGen random;
  return absl::StrFormat("%016x%016x", absl::Uniform<uint64_t>(random), absl::Uniform<uint64_t>(random));
}

}  // namespace paramshard::server
