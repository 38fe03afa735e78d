// The plan of an epoch in every world of up to four nodes.

#include "server/world/epoch_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/terms/healing_plan.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kCommit = 5;  // the newest one of history h

enum class Is : uint8_t { kAbsent, kSilent, kNew, kOld, kFresh, kLost, kOther, kOtherSpec };

// Knowledge of one node, which has one rank.
struct NodeCase {
  Is is = Is::kNew;
  bool attached = true;
};

constexpr NodeCase kCases[] = {{Is::kNew, true},   {Is::kNew, false},     {Is::kAbsent, false}, {Is::kSilent, false},
                               {Is::kOld, true},   {Is::kFresh, true},    {Is::kLost, true},    {Is::kLost, false},
                               {Is::kOther, true}, {Is::kOtherSpec, true}};

// A world and its settings.
struct WorldCase {
  std::vector<NodeCase> nodes;
  bool replicas = true;
  std::optional<int> min_nodes = {};
  absl::Duration timeout = absl::ZeroDuration();
  bool last_is_away = false;  // the last epoch was without the last node
  int64_t decided = 0;        // of history h by another coordinator; 0: there was none
  bool has_saves = false;
  std::optional<int> order = {};

  int size() const { return static_cast<int>(nodes.size()); }
  int needed() const { return replicas ? min_nodes.value_or(size()) : size(); }
};

std::string Name(const WorldCase& world) {
  static constexpr const char* kNames[] = {"absent", "silent", "new", "old", "fresh", "lost", "other", "spec"};
  std::string name;
  for (const NodeCase& node : world.nodes) {
    absl::StrAppend(&name, kNames[static_cast<int>(node.is)], node.attached ? "! " : " ");
  }
  return absl::StrCat(name, world.replicas ? "replicas" : "parts", " min_nodes=", world.min_nodes.value_or(0),
                      " timeout=", absl::FormatDuration(world.timeout), " last_is_away=", world.last_is_away,
                      " decided=", world.decided, " saves=", world.has_saves, " order=", world.order.value_or(-1));
}

ModelReport ReportOf(const WorldCase& world, int node) {
  const NodeCase& one = world.nodes[node];
  ModelReport report{.model = "m",
                     .spec_fingerprint = one.is == Is::kOtherSpec ? 2u : 1u,
                     .commit_number = one.is == Is::kOld ? kCommit - 1 : kCommit,
                     .lineage = "l",
                     .history_id = one.is == Is::kOther ? "other" : "h",
                     .shard_size = world.replicas ? 1 : world.size(),
                     .keeps_previous = world.replicas};
  report.version = report.commit_number;
  if (one.attached) report.attached_ranks = {node};
  if (one.is == Is::kFresh) {
    report.commit_number = report.version = 0;
    report.history_id = absl::StrCat("fresh", node);
    report.untouched = report.fresh = true;
  }
  if (one.is == Is::kLost) report.lost = absl::DataLossError("its server died");
  return report;
}

// The facts of a world, and the members that they refer to.
struct Facts {
  explicit Facts(const WorldCase& world)
      : members(world.size()), policy{.min_nodes = world.min_nodes, .timeout = world.timeout} {
    members.SetDeviceCounts(std::vector<int>(world.size(), 1));
    model = {.name = "m",
             .reports = ModelReports(world.size()),
             .is_new = std::vector<bool>(world.size(), true),
             .history_id = "h"};
    for (int node = 0; node < world.size(); ++node) {
      const Is is = world.nodes[node].is;
      if (is != Is::kAbsent) EXPECT_OK(members.Join(node, 1));
      if (is != Is::kAbsent && is != Is::kSilent) model.reports[node] = ReportOf(world, node);
      if (!world.last_is_away || node + 1 < world.size()) model.awaited.push_back(node);
    }
    if (world.decided > 0) model.before.push_back({.model = "m", .history_id = "h", .commit_number = world.decided});
    if (world.order.has_value()) {
      model.order.emplace(*world.order, "h", kCommit);
      for (int node = 0; node < world.size(); ++node) {
        if (!model.reports[node].has_value()) continue;
        model.order->Show({.node = node,
                           .fate = NodeState::Fate::kGivenUp,
                           .history_id = model.reports[node]->history_id,
                           .commit_number = model.reports[node]->commit_number});
      }
    }
    has_saves = world.has_saves;
  }

  EpochPlan Plan() const {
    return PlanEpoch(model, {.members = members, .policy = policy, .has_saves = has_saves, .now = SteadyNow()});
  }
  bool IsHere(int node) const { return members.present(node) && model.reports[node].has_value(); }

  Membership members;
  QuorumPolicy policy;
  ModelFacts model;
  bool has_saves = false;
};

// Calls `check(world)` for every world of `size` nodes. Node 0 is always present: it is the coordinator's own.
template <typename Check>
void ForEachWorld(int size, Check check) {
  WorldCase world{.nodes = std::vector<NodeCase>(size)};
  std::vector<size_t> digits(size);
  const auto next = [&] {
    for (int node = 0; node < size; ++node) {
      if (++digits[node] < std::size(kCases)) return true;
      digits[node] = 0;
    }
    return false;
  };
  do {
    for (int node = 0; node < size; ++node) world.nodes[node] = kCases[digits[node]];
    if (world.nodes[0].is != Is::kAbsent) check(world);
  } while (next());
}

// Calls `check(world)` with every setting of the world.
template <typename Check>
void ForEachSetting(WorldCase world, Check check) {
  std::vector<std::optional<int>> minima = {std::nullopt};
  for (int nodes = 1; nodes < world.size(); ++nodes) minima.push_back(nodes);
  for (const bool replicas : {true, false}) {
    for (const std::optional<int> min_nodes : minima) {
      for (const int64_t decided : {int64_t{0}, kCommit, kCommit + 2}) {
        for (const bool has_saves : {false, true}) {
          for (const int setting : {0, 1, 2}) {
            world.replicas = replicas;
            world.min_nodes = min_nodes;
            world.decided = decided;
            world.has_saves = has_saves;
            // Epochs were never without a node if they need all.
            world.last_is_away = setting == 1;
            if (world.last_is_away && world.size() - 1 < world.needed()) continue;
            world.timeout = setting == 2 ? absl::Hours(1) : absl::ZeroDuration();
            check(world);
          }
        }
      }
    }
  }
}

class EpochPlanTest : public ::testing::Test {
 protected:
  void CheckStart(const WorldCase& world, const Facts& facts, const StartEpoch& start) {
    EXPECT_TRUE(std::is_sorted(start.nodes.begin(), start.nodes.end()));
    EXPECT_EQ(start.nodes.front(), 0) << "node 0 takes part in every epoch";
    EXPECT_GE(static_cast<int>(start.nodes.size()), world.needed());
    std::map<int, int> donors;
    for (const Healing& healing : start.healings) donors[healing.receiver] = healing.donor;
    bool has_begun = false;
    const int right = FirstWithState(start.nodes, start.healings);
    for (const int node : start.nodes) {
      ASSERT_TRUE(facts.IsHere(node) && IsAttached(facts.model, facts.members, node)) << "node " << node;
      const ModelReport& report = *facts.model.reports[node];
      const ModelReport& state = *facts.model.reports[right];
      EXPECT_EQ(report.spec_fingerprint, state.spec_fingerprint);
      if (!donors.contains(node)) {
        EXPECT_TRUE(report.lost.ok() && IsOneState(report, state)) << "node " << node << " trains on another state";
        has_begun = has_begun || !report.untouched;
        continue;
      }
      EXPECT_TRUE(std::binary_search(start.nodes.begin(), start.nodes.end(), donors[node]));
      EXPECT_FALSE(donors.contains(donors[node])) << "no donor is a receiver";
      if (facts.model.order.has_value() || !report.lost.ok() || report.fresh) continue;
      EXPECT_EQ(report.history_id, state.history_id) << "only a person gives up another history";
      EXPECT_LT(report.commit_number, state.commit_number);
    }
    const bool is_whole = static_cast<int>(start.nodes.size()) == world.size();
    EXPECT_TRUE(is_whole || has_begun) << "a node that is away may have a trained state";
    if (facts.model.order.has_value()) {
      EXPECT_FALSE(donors.contains(facts.model.order->donor())) << "the ordered state counts";
    } else if (world.needed() < world.size() && facts.model.reports[right]->history_id == "h") {
      EXPECT_GE(facts.model.reports[right]->commit_number, world.decided) << "a decided commit is lost";
    }
  }

  void CheckWait(const WorldCase& world, const Facts& facts, const WaitToStart& wait) {
    EXPECT_THAT(wait.why, Not(IsEmpty()));
    bool is_one_away = false, is_one_unattached = false, are_one = true;
    for (int node = 0; node < world.size(); ++node) {
      const bool is_attached = facts.IsHere(node) && IsAttached(facts.model, facts.members, node);
      is_one_away = is_one_away || !facts.members.present(node);
      is_one_unattached = is_one_unattached || (facts.members.present(node) && !is_attached);
      are_one = are_one && is_attached && world.nodes[node].is == Is::kNew;
    }
    EXPECT_FALSE(are_one && world.decided <= kCommit) << "nothing stands in the way of an epoch";
    if (wait.what == WaitToStart::For::kNodes) EXPECT_TRUE(is_one_away);
    if (wait.what == WaitToStart::For::kTrainers) EXPECT_TRUE(is_one_unattached);
    EXPECT_THAT(wait.why, Not(HasSubstr("ranks  ("))) << "it names what is missing";
  }

  void CheckRollBack(const WorldCase& world, const Facts& facts, const RollBack& back) {
    EXPECT_TRUE(world.has_saves && world.size() > 1 && HasWaitingTrainers(facts.model));
    EXPECT_FALSE(back.why.ok());
    const bool lacks_state = std::any_of(world.nodes.begin(), world.nodes.end(), [](const NodeCase& node) {
      return node.is == Is::kLost || node.is == Is::kFresh;
    });
    EXPECT_TRUE(lacks_state || world.decided > kCommit - 1) << "every node has the newest state: " << back.why;
  }

  // Plans as the coordinator does, until a plan is final.
  void Check(const WorldCase& world) {
    SCOPED_TRACE(Name(world));
    Facts facts(world);
    for (int round = 0; round <= world.size() + 1; ++round) {
      const EpochPlan plan = facts.Plan();
      SCOPED_TRACE(ToText(plan));
      ++plans_[plan.index()];
      if (const auto* start = std::get_if<StartEpoch>(&plan)) return CheckStart(world, facts, *start);
      if (const auto* wait = std::get_if<WaitToStart>(&plan)) return CheckWait(world, facts, *wait);
      if (const auto* back = std::get_if<RollBack>(&plan)) return CheckRollBack(world, facts, *back);
      if (std::holds_alternative<DropOrder>(plan)) {
        ASSERT_TRUE(facts.model.order.has_value());
        const std::optional<ModelReport>& report = facts.model.reports[facts.model.order->donor()];
        EXPECT_FALSE(report.has_value() && facts.model.order->IsOf(*report));
        facts.model.order.reset();
        continue;
      }
      const auto& refusal = std::get<RefuseToStart>(plan);
      EXPECT_TRUE(HasWaitingTrainers(facts.model)) << "somebody hears it";
      if (refusal.nodes.empty()) {
        EXPECT_FALSE(refusal.why.ok());
        return;
      }
      for (const auto& [node, why] : refusal.nodes) {
        EXPECT_FALSE(why.ok());
        EXPECT_FALSE(std::binary_search(facts.model.awaited.begin(), facts.model.awaited.end(), node))
            << "only nodes that come back are refused alone";
        ASSERT_TRUE(IsAttached(facts.model, facts.members, node)) << "no node is refused twice";
        facts.model.reports[node]->attached_ranks.clear();
      }
    }
    ADD_FAILURE() << "no plan is final";
  }

  void CheckAll(int size) {
    ForEachWorld(size, [&](const WorldCase& world) {
      if (!HasFailure()) ForEachSetting(world, [&](const WorldCase& one) { Check(one); });
    });
  }

  std::map<size_t, int64_t> plans_;  // by kind
};

TEST_F(EpochPlanTest, KeepsItsContractInEveryWorldOfUpToThreeNodes) {
  for (int size = 1; size <= 3; ++size) CheckAll(size);
  for (const size_t kind : {0, 1, 2, 3}) EXPECT_GT(plans_[kind], 100) << "else the test has seen nothing";
}

TEST_F(EpochPlanTest, KeepsItsContractInEveryWorldOfFourNodes) {
  ForEachWorld(4, [&](WorldCase world) {
    if (HasFailure()) return;
    for (const int min_nodes : {2, 3, 4}) {
      world.min_nodes = min_nodes;
      world.has_saves = min_nodes != 3;
      world.last_is_away = min_nodes == 3;
      world.decided = min_nodes == 2 ? kCommit : 0;
      Check(world);
    }
  });
  for (const size_t kind : {0, 1, 2, 3}) EXPECT_GT(plans_[kind], 100) << "else the test has seen nothing";
}

TEST_F(EpochPlanTest, KeepsItsContractWithEveryOrderToHeal) {
  for (int size = 2; size <= 3; ++size) {
    ForEachWorld(size, [&](WorldCase world) {
      if (HasFailure()) return;
      for (int donor = 0; donor < size; ++donor) {
        world.order = donor;
        ForEachSetting(world, [&](const WorldCase& one) { Check(one); });
      }
    });
  }
  EXPECT_GT(plans_[4], 100) << "else no order was dropped";
}

struct TextCase {
  WorldCase world;
  std::string text;
};

TEST_F(EpochPlanTest, SaysWhyNoEpochStarts) {
  const NodeCase here, away{Is::kAbsent, false}, idle{Is::kNew, false}, other{Is::kOther}, lost{Is::kLost};
  const TextCase cases[] = {
      {{.nodes = {here, idle}}, "waits for rank 1 (1 of 2 attached)"},
      {{.nodes = {here, away, away}}, "waits: node 1 (rank 1) and node 2 (rank 2) are absent"},
      {{.nodes = {here, away, away}, .min_nodes = 2},
       "waits: node 1 (rank 1) and node 2 (rank 2) are absent, 2 of 3 nodes are needed"},
      {{.nodes = {here, here, away}, .min_nodes = 2, .timeout = absl::Seconds(3600)}, "the others wait 1h"},
      {{.nodes = {here, other}}, "refused: start epoch of m: want one history on all nodes"},
      {{.nodes = {here, here, other}, .min_nodes = 2, .last_is_away = true},
       "refused: start epoch of m: the others have gone on without node 2 (rank 2)"},
      {{.nodes = {here, lost}, .replicas = false, .has_saves = true},
       "rolls back: start epoch of m: want its state on all nodes, got none on node 1 (rank 1): its server died"},
      {{.nodes = {lost, here, away}, .min_nodes = 1}, "waits: node 0 has no state and waits for more daemons"},
      {{.nodes = {here, here, away}, .order = 2}, "waits: node 2 (rank 2) is absent"},
      {{.nodes = {here, here, away}, .min_nodes = 2, .order = 2},
       "waits: node 2 (rank 2), whose state all nodes are ordered to get, takes no part"},
      {{.nodes = {here, here, away}, .min_nodes = 2, .decided = kCommit + 1}, "which was decided, got 5"},
      {{.nodes = {here, here}}, "starts with 2 nodes, of which 0 are healed"},
  };
  for (const TextCase& one : cases) EXPECT_THAT(ToText(Facts(one.world).Plan()), HasSubstr(one.text));
}

// The log tells a wait when its kind changes.
TEST_F(EpochPlanTest, AFirstEpochThatNeedsAllNodesIsAWaitOfItsOwnKind) {
  const auto wait = [](absl::Duration timeout) {
    const NodeCase fresh{Is::kFresh}, away{Is::kAbsent, false};
    return std::get<WaitToStart>(Facts({.nodes = {fresh, fresh, away}, .min_nodes = 2, .timeout = timeout}).Plan());
  };
  const WaitToStart before = wait(absl::Hours(1)), after = wait(absl::ZeroDuration());
  EXPECT_THAT(before.why, HasSubstr("the others wait 1h"));
  EXPECT_THAT(after.why, HasSubstr("the first epoch of a history needs all nodes"));
  EXPECT_NE(before.what, after.what);
}

}  // namespace
}  // namespace paramshard::server
