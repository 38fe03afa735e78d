#include "server/models/epoch_admission.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace paramshard::server {
namespace {

absl::StatusOr<History> ForkedHistory(const EpochStart& start, const PresentState& present) {
  const HistoryFork& from = *start.fork;
  const History& own = present.history;
  const int64_t commit_number = present.numbers.commit_number;
  const absl::StatusOr<HistoryId> id = HistoryId::Parse(start.history_id);
  const absl::StatusOr<HistoryId> parent = HistoryId::Parse(from.history_id);
  const bool is_it =
      from.history_id == own.id.ToString() || (present.untouched && from.lineage == own.lineage.ToString());
  if (!id.ok() || !parent.ok() || !is_it || commit_number != from.commit_number) {
    return absl::AbortedError(
        absl::StrCat("start epoch ", start.epoch, " of ", present.model, ": want commit ", from.commit_number,
                     " of history ", from.history_id, ", got ", commit_number, " of ", own.id.ToString(),
                     ": the state was replaced after paramshardctl heal had named it as the right one"));
  }
  History forked = own;
  forked.id = *id;
  forked.lineage = {id->value};
  forked.parent = HistoryParent{.history = *parent, .commit_number = commit_number};
  return forked;
}

}  // namespace

absl::Status CheckActive(const EpochStart& start, const Topology& topology) {
  const std::vector<int>& active = start.active;
  const bool ascends = std::adjacent_find(active.begin(), active.end(), std::greater_equal<>()) == active.end();
  const bool fits = ascends && !active.empty() && active.front() >= 0 && active.back() < topology.nodes() &&
                    std::binary_search(active.begin(), active.end(), topology.node());
  const bool is_whole = static_cast<int>(active.size()) == topology.nodes();
  if (fits && (is_whole || topology.has_replicas())) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("start epoch ", start.epoch, ": want nodes of this world with node ",
                                         topology.node(), ", got [", absl::StrJoin(active, ", "), "]"));
}

const Healing* HealingOf(const EpochStart& start, int node) {
  const auto found = std::find_if(start.healings.begin(), start.healings.end(),
                                  [node](const Healing& healing) { return healing.receiver == node; });
  return found == start.healings.end() ? nullptr : &*found;
}

absl::Status CheckMayBeHealed(const EpochStart& start, const Healing& healing, const PresentState& present) {
  const History& own = present.history;
  const int64_t commit_number = present.numbers.commit_number;
  if (present.lost || (present.untouched && commit_number == 0)) return absl::OkStatus();
  // A person has given the state up, as it was then.
  const Healing::GivenUp state{.history_id = own.id.ToString(), .commit_number = commit_number};
  if (healing.gives_up == state) return absl::OkStatus();
  // The state is an old one of this history, from which others have gone on.
  if (start.history_id == own.id.ToString()) return absl::OkStatus();
  if (present.untouched && start.lineage == own.lineage.ToString()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("start epoch of ", present.model,
                                         ": another node is to heal this one, which has the state of commit ",
                                         commit_number, "; attach again"));
}

absl::StatusOr<History> HistoryInEpoch(const EpochStart& start, const PresentState& present) {
  if (start.fork.has_value()) return ForkedHistory(start, present);
  History own = present.history;
  if (start.history_id == own.id.ToString()) return own;
  const absl::StatusOr<HistoryId> id = HistoryId::Parse(start.history_id);
  if (!id.ok() || !present.untouched || start.lineage != own.lineage.ToString()) {
    return absl::AbortedError(absl::StrCat("start epoch ", start.epoch, " of ", present.model, ": want history ",
                                           own.id.ToString(), ", got ", start.history_id,
                                           ": the state was replaced after the daemons had agreed; attach again"));
  }
  own.id = *id;
  return own;
}

}  // namespace paramshard::server
