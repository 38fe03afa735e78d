#include "server/world/healing_order.h"

#include <algorithm>

#include "absl/numeric/int128.h"
#include "absl/random/random.h"
#include "common/checkpoint/content_hash.h"

namespace paramshard::server {

bool HealingOrder::IsOf(const ModelReport& report) const {
  const bool is_known = std::find(histories_.begin(), histories_.end(), report.history_id) != histories_.end();
  return report.lost.ok() && !report.fresh && is_known && report.commit_number >= commit_number_;
}

void HealingOrder::Show(const NodeState& state) { shown_[state.node] = state; }

bool HealingOrder::MayGiveUp(int node, const ModelReport& report) const {
  if (!report.lost.ok() || report.fresh) return true;
  const auto shown = shown_.find(node);
  return shown != shown_.end() && shown->second.history_id == report.history_id &&
         shown->second.commit_number == report.commit_number;
}

bool HealingOrder::HasTwin() const {
  return std::any_of(shown_.begin(), shown_.end(),
                     [](const auto& shown) { return shown.second.fate == NodeState::Fate::kSame; });
}

bool HealingOrder::IsFor(const std::vector<int>& active) const {
  return std::all_of(shown_.begin(), shown_.end(), [&](const auto& shown) {
    const NodeState::Fate fate = shown.second.fate;
    const bool gives_up = fate == NodeState::Fate::kGivenUp || fate == NodeState::Fate::kNone;
    return !gives_up || std::binary_search(active.begin(), active.end(), shown.first);
  });
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
  return checkpoint::HashText(absl::MakeUint128(random(), random()));
}

}  // namespace paramshard::server
