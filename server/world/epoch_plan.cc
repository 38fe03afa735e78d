#include "server/world/epoch_plan.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "server/world/state_difference.h"

namespace paramshard::server {
namespace {

// Returns the ranks of the node that have no trainer.
std::vector<int> MissingRanks(const ModelFacts& model, const Membership& members, int node) {
  const std::optional<ModelReport>& report = model.reports[node];
  const RankRange ranks = members.ranks(node);
  std::vector<int> missing;
  for (int rank = ranks.begin; rank < ranks.end; ++rank) {
    if (!report.has_value() || !absl::c_linear_search(report->attached_ranks, rank)) missing.push_back(rank);
  }
  return missing;
}

// Returns "rank 1" or "ranks 1..3, 5 and 2 more" for ranks in order.
std::string RanksText(const std::vector<int>& ranks) {
  constexpr size_t kMostRanges = 4;
  std::vector<std::string> ranges;
  size_t named = 0;
  while (named < ranks.size() && ranges.size() < kMostRanges) {
    size_t end = named + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    ranges.push_back(absl::StrCat(ranks[named]));
    if (end > named + 1) absl::StrAppend(&ranges.back(), "..", ranks[end - 1]);
    named = end;
  }
  std::string text = absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranges, ", "));
  if (named < ranks.size()) absl::StrAppend(&text, " and ", ranks.size() - named, " more");
  return text;
}

// Error for a node that the others have gone on without.
absl::Status NoPartError(const std::string& model, const std::string& node, const ModelReport& report,
                         absl::string_view history_id, int64_t commit_number) {
  return absl::FailedPreconditionError(absl::StrCat(
      "start epoch of ", model, ": the others have gone on without ", node, ": want no state there, or one of history ",
      history_id, " up to commit ", commit_number, ", got commit ", report.commit_number, " of history ",
      report.history_id, ": if its state is not wanted delete the model on that node, or say which node is right, `",
      HealCommand(model), "` at node 0; or import the same into every daemon"));
}

// Returns true if the node has no state, or a state from which the others have gone on.
bool MayBeHealed(const ModelReport& report, absl::string_view history_id, int64_t commit_number,
                 const ReplacedHistories& replaced) {
  if (replaced.GivesWay(report.history_id, history_id)) return true;
  if (!report.lost.ok() || report.fresh || (report.untouched && report.commit_number == 0)) return true;
  return report.history_id == history_id && report.commit_number <= commit_number;
}

// One plan. Functions that take nodes require their reports, unless they say otherwise.
class Planner {
 public:
  Planner(const ModelFacts& model, const WorldFacts& world)
      : model_(model),
        world_(world),
        members_(world.members),
        needed_(world.policy.Needed(members_.nodes())),
        may_be_fewer_(MayBeFewer(model, members_)) {}

  EpochPlan Plan() const;

 private:
  // Returns the nodes of the next epoch. Unset while it waits for a node that is absent, or that has to attach.
  std::optional<Nodes> NextNodes() const;
  // `begins`: the epoch would be the first of its history.
  EpochPlan WaitForNodes(bool begins = false) const;
  EpochPlan WaitForTrainers(const Nodes& nodes) const;
  EpochPlan WaitForState(WaitToStart::For what, std::string why) const;
  // Does not require reports.
  EpochPlan PlanUnattached(const Nodes& nodes, const std::vector<Healing>& healings) const;

  std::vector<Healing> Healings(const Nodes& nodes) const;
  bool AreAttached(const Nodes& nodes) const;
  bool IsWhole(const Nodes& nodes) const { return static_cast<int>(nodes.size()) == members_.nodes(); }
  bool MayLeaveOut() const { return may_be_fewer_ && needed_ < members_.nodes(); }

  // DATA_LOSS naming a node that has lost its part. Does not require reports.
  absl::Status CheckNotLost(const Nodes& nodes) const;
  // FAILED_PRECONDITION nodes hold different specs or states.
  absl::Status CheckEqual(const Nodes& nodes) const;
  // DATA_LOSS another coordinator has decided a later commit of this history than any of these nodes has. This happens
  // only if epochs may have fewer nodes.
  absl::Status CheckNewest(const Nodes& nodes, const std::vector<Healing>& healings) const;
  // Returns true if no node was told the last decision of `before`: all other voters have the state before it.
  bool WasNeverTold(const ClosedEpoch& before, const Nodes& nodes, const ModelReport& state) const;
  // Returns true if an epoch of these nodes would be the first of its history. Such an epoch needs all nodes, since a
  // missing one may have a trained state.
  bool WouldBegin(const Nodes& nodes) const;
  // Returns true if some nodes have initial values and all others one trained or imported state, as when empty daemons
  // replace lost ones.
  bool HasFreshBesideTrained(const Nodes& nodes) const;
  // Returns the nodes outside the last epoch that must not take part, with the reason: those whose state differs from
  // the state of its nodes, which go on without them; all of them, if each would fit alone.
  std::map<int, absl::Status> Unfit(const Nodes& nodes, const absl::Status& why) const;

  // Trainers that wait hear why, if there are any.
  EpochPlan Refuse(const absl::Status& why) const;
  // Rolls back while trainers wait, or refuses them if nothing is saved. Does not look for checkpoints, which would
  // read a disk.
  EpochPlan RollBackOrRefuse(const absl::Status& why) const;

  const ModelFacts& model_;
  const WorldFacts& world_;
  const Membership& members_;
  const int needed_;
  const bool may_be_fewer_;
};

EpochPlan Planner::Plan() const {
  const std::optional<Nodes> next = NextNodes();
  if (!next.has_value()) return WaitForNodes();
  const Nodes& nodes = *next;
  if (model_.order.has_value()) {
    const int donor = model_.order->donor();
    if (!Has(nodes, donor)) {
      return WaitForState(
          WaitToStart::For::kDonor,
          absl::StrCat(NodeName(members_, donor), ", whose state all nodes are ordered to get, takes no part"));
    }
    const std::optional<ModelReport>& report = model_.reports[donor];
    if (!report.has_value() || !model_.order->IsOf(*report)) return DropOrder();
  }
  std::vector<Healing> healings = Healings(nodes);
  if (!AreAttached(nodes)) return PlanUnattached(nodes, healings);
  const absl::Status lost = CheckNotLost(nodes);
  const absl::Status differ = lost.ok() ? CheckEqual(nodes) : lost;
  if (differ.ok() || !healings.empty()) {
    const absl::Status newest = CheckNewest(nodes, healings);
    if (!IsWhole(nodes) && (WouldBegin(nodes) || !newest.ok())) {
      return newest.ok() ? WaitForNodes(/*begins=*/true)
                         : WaitForState(WaitToStart::For::kNewest, std::string(newest.message()));
    }
    if (!newest.ok()) return RollBackOrRefuse(newest);
    return StartEpoch{.nodes = nodes, .healings = differ.ok() ? std::vector<Healing>() : std::move(healings)};
  }
  if (!IsWhole(nodes) && MayLeaveOut() && AreTooFewToTell(model_.reports, nodes, needed_)) {
    return WaitForState(
        WaitToStart::For::kNewest,
        absl::StrCat("node 0 has no state and waits for more daemons, to tell which state is the newest: ",
                     StatesText(model_.reports, nodes, members_), "; or `", HealCommand(model_.name), "`"));
  }
  if (std::map<int, absl::Status> unfit = Unfit(nodes, differ); !unfit.empty()) {
    return RefuseToStart{.nodes = std::move(unfit)};
  }
  return !lost.ok() || HasFreshBesideTrained(nodes) ? RollBackOrRefuse(differ) : Refuse(differ);
}

EpochPlan Planner::PlanUnattached(const Nodes& nodes, const std::vector<Healing>& healings) const {
  const absl::Status lost = CheckNotLost(nodes);
  // A node that has lost its part may be healed once all are present. Reports from before the last epoch do not count.
  const bool is_known = AreAllMade(model_.reports, nodes) &&
                        std::all_of(nodes.begin(), nodes.end(), [&](int node) { return model_.is_new[node]; });
  const bool may_heal = HoldReplicas(model_.reports, members_.world_size()) && (!is_known || !healings.empty());
  return lost.ok() || may_heal ? WaitForTrainers(nodes) : RollBackOrRefuse(lost);
}

// A needed node takes part at once, even after repeated losses or with cut links.
std::optional<Nodes> Planner::NextNodes() const {
  if (!members_.sized()) return std::nullopt;
  if (members_.complete() && needed_ == members_.nodes()) return model_.awaited;
  const auto next = [&](absl::FunctionRef<bool(int)> takes_part, const Nodes& left_out) {
    return NextActive(members_, model_.awaited, takes_part, world_.policy, may_be_fewer_, left_out, world_.now);
  };
  const auto is_ready = [&](int node) { return IsAttached(model_, members_, node); };
  const auto may_return = [&](int node) {
    return is_ready(node) && (IsOrderedDonor(model_, node) || MayReturn(members_, node, world_.policy, world_.now));
  };
  const std::optional<Nodes> nodes = next(may_return, world_.left_out);
  if (nodes.has_value() && !(AreAttached(*nodes) && WouldBegin(*nodes))) return nodes;
  return next(is_ready, nodes.has_value() ? Nodes() : world_.left_out);
}

EpochPlan Planner::WaitForNodes(bool begins) const {
  Nodes all, absent;
  for (int node = 0; node < members_.nodes(); ++node) {
    all.push_back(node);
    if (!members_.present(node)) absent.push_back(node);
  }
  if (absent.empty()) return WaitForTrainers(all);  // ranks are known once no node is absent
  std::string why = absl::StrCat(NodesText(absent, members_), absent.size() == 1 ? " is" : " are", " absent");
  if (begins) {
    absl::StrAppend(&why, ", the first epoch of a history needs all nodes");
  } else if (MayLeaveOut()) {
    absl::StrAppend(&why, ", ", needed_, " of ", members_.nodes(), " nodes are needed");
    if (const auto at = NextGivenUp(members_, world_.policy, world_.now); at.has_value()) {
      absl::StrAppend(&why, ", the others wait ",
                      absl::FormatDuration(absl::Ceil(absl::FromChrono(*at - world_.now), absl::Seconds(1))), " more");
    }
  }
  return WaitToStart{.what = begins ? WaitToStart::For::kFirstEpoch : WaitToStart::For::kNodes, .why = std::move(why)};
}

EpochPlan Planner::WaitForTrainers(const Nodes& nodes) const {
  std::vector<int> missing;
  int all = 0;
  for (const int node : nodes) {
    const RankRange ranks = members_.ranks(node);
    all += ranks.end - ranks.begin;
    absl::c_copy(MissingRanks(model_, members_, node), std::back_inserter(missing));
  }
  return WaitToStart{
      .what = WaitToStart::For::kTrainers,
      .why = absl::StrCat(RanksText(missing), " (", all - static_cast<int>(missing.size()), " of ", all, " attached)")};
}

EpochPlan Planner::WaitForState(WaitToStart::For what, std::string why) const {
  return WaitToStart{.what = what, .why = std::move(why)};
}

std::vector<Healing> Planner::Healings(const Nodes& nodes) const {
  if (!model_.order.has_value()) {
    return PlanHealings(model_.reports, nodes, members_.world_size(), needed_, model_.replaced);
  }
  return PlanOrderedHealings(model_.reports, nodes, members_.world_size(), model_.order->donor(),
                             [&](int node) { return model_.order->MayGiveUp(node, *model_.reports[node]); });
}

bool Planner::AreAttached(const Nodes& nodes) const {
  return std::all_of(nodes.begin(), nodes.end(), [&](int node) { return IsAttached(model_, members_, node); });
}

absl::Status Planner::CheckNotLost(const Nodes& nodes) const {
  for (const int node : nodes) {
    const std::optional<ModelReport>& report = model_.reports[node];
    if (!report.has_value() || report->lost.ok()) continue;
    return absl::DataLossError(absl::StrCat("start epoch of ", model_.name,
                                            ": want its state on all nodes, got none on ", NodeName(members_, node),
                                            ": ", report->lost.message()));
  }
  return absl::OkStatus();
}

absl::Status Planner::CheckEqual(const Nodes& nodes) const {
  const ModelReport& first = *model_.reports[nodes[0]];
  for (const int node : nodes) {
    if (model_.reports[node]->spec_fingerprint == first.spec_fingerprint) continue;
    return SpecsDifferError(model_.name, model_.reports, nodes[0], node, members_);
  }
  const bool are_one =
      std::all_of(nodes.begin(), nodes.end(), [&](int node) { return IsOneState(first, *model_.reports[node]); });
  return are_one ? absl::OkStatus() : StatesDifferError(model_.name, model_.reports, nodes, members_);
}

// A disk may keep a decision whose write failed, so that no node was told of it. A node that votes on a commit is in
// doubt, has the commit, or was told that there is none.
bool Planner::WasNeverTold(const ClosedEpoch& before, const Nodes& nodes, const ModelReport& state) const {
  if (!before.last_decision.has_value() || before.last_decision->epoch != before.epoch || before.active.size() < 2 ||
      before.commit_number != state.commit_number + 1) {
    return false;
  }
  return std::all_of(before.active.begin(), before.active.end(), [&](int node) {
    return node == 0 ||
           (Has(nodes, node) && model_.reports[node]->lost.ok() && IsOneState(state, *model_.reports[node]));
  });
}

absl::Status Planner::CheckNewest(const Nodes& nodes, const std::vector<Healing>& healings) const {
  // An order to heal overrides this.
  if (!MayLeaveOut() || model_.order.has_value()) return absl::OkStatus();
  const ModelReport& state = *model_.reports[FirstWithState(nodes, healings)];
  for (const ClosedEpoch& before : model_.before) {
    if (before.history_id != state.history_id || before.commit_number <= state.commit_number) continue;
    if (WasNeverTold(before, nodes, state)) continue;
    return absl::DataLossError(absl::StrCat("start epoch of ", model_.name, ": want commit ", before.commit_number,
                                            " of history ", before.history_id, ", which was decided, got ",
                                            state.commit_number, ": the nodes that made it are away or have lost it"));
  }
  return absl::OkStatus();
}

bool Planner::WouldBegin(const Nodes& nodes) const {
  return std::all_of(nodes.begin(), nodes.end(), [&](int node) {
    const ModelReport& report = *model_.reports[node];
    const bool has_begun = report.history_id == model_.history_id ||
                           std::any_of(model_.before.begin(), model_.before.end(),
                                       [&](const ClosedEpoch& epoch) { return epoch.history_id == report.history_id; });
    return !report.lost.ok() || (report.untouched && !has_begun);
  });
}

bool Planner::HasFreshBesideTrained(const Nodes& nodes) const {
  const ModelReport* trained = nullptr;
  bool has_fresh = false;
  for (const int node : nodes) {
    const ModelReport& report = *model_.reports[node];
    if (report.spec_fingerprint != model_.reports[nodes[0]]->spec_fingerprint) return false;
    if (report.fresh) {
      has_fresh = true;
      continue;
    }
    // If trained states differ from each other, a person has to say which one counts.
    if (trained != nullptr && !IsOneState(*trained, report)) return false;
    trained = &report;
  }
  return has_fresh && trained != nullptr;
}

std::map<int, absl::Status> Planner::Unfit(const Nodes& nodes, const absl::Status& why) const {
  Nodes others, returners;
  for (const int node : nodes) (Has(model_.awaited, node) ? others : returners).push_back(node);
  // Nodes that would begin a history need all nodes, so they refuse none.
  if (WouldBegin(others)) return {};
  const int other =
      *std::find_if(others.begin(), others.end(), [&](int node) { return model_.reports[node]->lost.ok(); });
  const ModelReport& state = *model_.reports[other];
  std::map<int, absl::Status> unfit;
  for (const int node : returners) {
    const absl::Status fits = CheckMayReturn(model_, members_, node, other, state.history_id, state.commit_number);
    if (!fits.ok()) unfit.emplace(node, fits);
  }
  if (!unfit.empty()) return unfit;
  for (const int node : returners) unfit.emplace(node, why);
  return unfit;
}

EpochPlan Planner::Refuse(const absl::Status& why) const {
  if (HasWaitingTrainers(model_)) return RefuseToStart{.why = why};
  return WaitToStart{.what = WaitToStart::For::kState, .why = std::string(why.message())};
}

EpochPlan Planner::RollBackOrRefuse(const absl::Status& why) const {
  const bool has_saves = members_.nodes() > 1 && world_.has_saves;
  if (!has_saves || !HasWaitingTrainers(model_)) return Refuse(WithWayOut(model_, members_, why));
  return RollBack{.why = why};
}

}  // namespace

bool ModelFacts::IsActive(int node) const { return Has(active, node); }

bool ModelFacts::IsReported() const {
  return std::any_of(reports.begin(), reports.end(), [](const auto& report) { return report.has_value(); });
}

EpochPlan PlanEpoch(const ModelFacts& model, const WorldFacts& world) { return Planner(model, world).Plan(); }

std::string ToText(const EpochPlan& plan) {
  struct Writer {
    std::string operator()(const StartEpoch& start) const {
      return absl::StrCat("starts with ", start.nodes.size(), " nodes, of which ", start.healings.size(),
                          " are healed");
    }
    std::string operator()(const WaitToStart& wait) const {
      return absl::StrCat(wait.what == WaitToStart::For::kTrainers ? "waits for " : "waits: ", wait.why);
    }
    std::string operator()(const RefuseToStart& refusal) const {
      const absl::Status& why = refusal.nodes.empty() ? refusal.why : refusal.nodes.begin()->second;
      return absl::StrCat("refused: ", why.message());
    }
    std::string operator()(const RollBack& back) const { return absl::StrCat("rolls back: ", back.why.message()); }
    std::string operator()(const DropOrder&) const { return "drops an order to heal"; }
  };
  return std::visit(Writer(), plan);
}

bool IsAttached(const ModelFacts& model, const Membership& members, int node) {
  return model.reports[node].has_value() && MissingRanks(model, members, node).empty();
}

bool HasWaitingTrainers(const ModelFacts& model) {
  return std::any_of(model.reports.begin(), model.reports.end(),
                     [](const auto& report) { return report.has_value() && !report->attached_ranks.empty(); });
}

bool IsOrderedDonor(const ModelFacts& model, int node) {
  return model.order.has_value() && model.order->donor() == node;
}

bool MayBeFewer(const ModelFacts& model, const Membership& members) {
  return members.sized() && HoldReplicas(model.reports, members.world_size()) &&
         std::none_of(model.reports.begin(), model.reports.end(), [&](const auto& report) {
           return report.has_value() && HasLeadersSpec(model.reports, *report) && report->needs_every_node;
         });
}

bool MayLeaveOut(const ModelFacts& model, const Membership& members, const QuorumPolicy& policy) {
  return policy.Needed(members.nodes()) < members.nodes() && MayBeFewer(model, members);
}

int FirstWithState(const std::vector<int>& nodes, const std::vector<Healing>& healings) {
  return *std::find_if(nodes.begin(), nodes.end(), [&](int node) {
    return std::none_of(healings.begin(), healings.end(), [node](const Healing& one) { return one.receiver == node; });
  });
}

absl::Status CheckMayReturn(const ModelFacts& model, const Membership& members, int node, int other,
                            absl::string_view history_id, int64_t commit_number) {
  const ModelReport& report = *model.reports[node];
  if (report.spec_fingerprint != model.reports[other]->spec_fingerprint) {
    return SpecsDifferError(model.name, model.reports, other, node, members);
  }
  const bool may_return = (model.order.has_value() && model.order->MayGiveUp(node, report)) ||
                          MayBeHealed(report, history_id, commit_number, model.replaced);
  if (may_return) return absl::OkStatus();
  return NoPartError(model.name, NodeName(members, node), report, history_id, commit_number);
}

absl::Status WithWayOut(const ModelFacts& model, const Membership& members, const absl::Status& why) {
  if (!absl::IsDataLoss(why) || !HoldReplicas(model.reports, members.world_size())) return why;
  Nodes nodes;
  bool is_anywhere = false;
  for (int node = 0; node < members.nodes(); ++node) {
    const std::optional<ModelReport>& report = model.reports[node];
    if (!report.has_value()) continue;
    nodes.push_back(node);
    is_anywhere = is_anywhere || (report->lost.ok() && !report->fresh);
  }
  if (!is_anywhere) return why;
  return absl::Status(why.code(), absl::StrCat(why.message(), "; there is ", StatesText(model.reports, nodes, members),
                                               ": say which node is right, `", HealCommand(model.name), "` at node 0"));
}

}  // namespace paramshard::server
