#include "server/models/epoch_admission.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

// The coordinator starts an epoch from the reported state: commit 5 of history 1, which has lineage 1.
constexpr int64_t kCommit = 5;
constexpr HistoryId kReported = {1};
constexpr Lineage kLineage = {1};
constexpr HistoryId kFork = {2};   // history that begins with the epoch
constexpr HistoryId kOther = {3};  // in which another node has trained
constexpr Lineage kOtherLineage = {3};

// State of a node when the announcement comes. The node may have changed it since its report.
enum class Is : uint8_t {
  kReported,       // the reported state
  kBehind,         // an earlier commit of that history
  kAlike,          // imported as the reported state was, without a commit since
  kInitial,        // initial values of the same spec
  kOtherInitial,   // other initial values
  kOtherImport,    // imported otherwise, without a commit since
  kOtherTraining,  // trained in another history
  kLost,           // the same, and lost
};
constexpr Is kAll[] = {Is::kReported,     Is::kBehind,      Is::kAlike,         Is::kInitial,
                       Is::kOtherInitial, Is::kOtherImport, Is::kOtherTraining, Is::kLost};

constexpr const char* kNames[] = {"reported",      "behind",       "alike",          "initial",
                                  "other initial", "other import", "other training", "lost"};

PresentState StateOf(Is is, int node) {
  const HistoryId own = {static_cast<uint64_t>(100 + node)};
  switch (is) {
    case Is::kReported:
      return {.model = "m", .numbers = {.commit_number = kCommit}, .history = {kReported, kLineage}};
    case Is::kBehind:
      return {.model = "m", .numbers = {.commit_number = kCommit - 1}, .history = {kReported, kLineage}};
    case Is::kAlike:
      return {.model = "m", .numbers = {.commit_number = kCommit}, .history = {own, kLineage}, .untouched = true};
    case Is::kInitial:
      return {.model = "m", .history = {own, kLineage}, .untouched = true};
    case Is::kOtherInitial:
      return {.model = "m", .history = {own, kOtherLineage}, .untouched = true};
    case Is::kOtherImport:
      return {.model = "m", .numbers = {.commit_number = kCommit}, .history = {own, kOtherLineage}, .untouched = true};
    case Is::kOtherTraining:
      return {.model = "m", .numbers = {.commit_number = kCommit}, .history = {kOther, kLineage}};
    case Is::kLost:
      break;
  }
  return {.model = "m", .numbers = {.commit_number = kCommit}, .history = {kOther, kLineage}, .lost = true};
}

// State of a healed node that a person has seen, and has ordered to give up.
enum class Seen : uint8_t { kNothing, kItsState, kAnEarlierState };

struct WorldCase {
  std::vector<Is> nodes;
  std::vector<bool> is_healed;  // by node
  Seen seen = Seen::kNothing;
  bool forks = false;  // the order begins a history of its own

  int size() const { return static_cast<int>(nodes.size()); }
};

std::string Name(const WorldCase& world) {
  std::string name;
  for (int node = 0; node < world.size(); ++node) {
    absl::StrAppend(&name, kNames[static_cast<int>(world.nodes[node])], world.is_healed[node] ? " (healed), " : ", ");
  }
  return absl::StrCat(name, "seen ", static_cast<int>(world.seen), ", forks ", world.forks);
}

EpochStart StartOf(const WorldCase& world) {
  EpochStart start{.model = "m", .epoch = 7, .lineage = kLineage.ToString(), .history_id = kReported.ToString()};
  if (world.forks) {
    start.fork = {.history_id = start.history_id, .lineage = start.lineage, .commit_number = kCommit};
    start.history_id = start.lineage = kFork.ToString();
  }
  for (int node = 0; node < world.size(); ++node) {
    start.active.push_back(node);
    if (!world.is_healed[node]) continue;
    Healing healing{.receiver = node};
    while (world.is_healed[healing.donor]) ++healing.donor;
    const PresentState state = StateOf(world.nodes[node], node);
    if (world.seen != Seen::kNothing) {
      const bool is_it = world.seen == Seen::kItsState;
      healing.gives_up = {.history_id = state.history.id.ToString(),
                          .commit_number = state.numbers.commit_number - (is_it ? 0 : 1)};
    }
    start.healings.push_back(healing);
  }
  return start;
}

// Returns true if a replica may overwrite the state without a loss.
bool MayGiveUp(const WorldCase& world, int node) {
  if (world.seen == Seen::kItsState) return true;
  switch (world.nodes[node]) {
    case Is::kInitial:
    case Is::kOtherInitial:
    case Is::kLost:
      return true;  // nothing is lost
    case Is::kReported:
    case Is::kBehind:
    case Is::kAlike:
      return !world.forks;  // the others have the state, or a later one of this history
    case Is::kOtherImport:
    case Is::kOtherTraining:
      break;
  }
  return false;
}

// Returns true if the state is the one that the epoch goes on from, as far as its history tells.
bool MayGoOn(const WorldCase& world, int node) {
  switch (world.nodes[node]) {
    case Is::kReported:
    case Is::kAlike:
      return true;
    case Is::kBehind:
    case Is::kInitial:
      return !world.forks;  // only a fork says its commit: the coordinator compares the commits of others
    case Is::kOtherInitial:
    case Is::kOtherImport:
    case Is::kOtherTraining:
    case Is::kLost:
      break;
  }
  return false;
}

// Calls `check` with every world of up to three nodes of which one at least keeps its state.
void ForEachWorld(const std::function<void(const WorldCase& world)>& check) {
  WorldCase world;
  const std::function<void(int more)> add = [&](int more) {
    const bool is_one_right = std::count(world.is_healed.begin(), world.is_healed.end(), false) > 0;
    if (is_one_right) {
      for (const Seen seen : {Seen::kNothing, Seen::kItsState, Seen::kAnEarlierState}) {
        for (const bool forks : {false, true}) {
          world.seen = seen;
          world.forks = forks;
          check(world);
        }
      }
    }
    if (more == 0) return;
    for (const Is is : kAll) {
      for (const bool is_healed : {false, true}) {
        world.nodes.push_back(is);
        world.is_healed.push_back(is_healed);
        add(more - 1);
        world.nodes.pop_back();
        world.is_healed.pop_back();
      }
    }
  };
  add(3);
}

// The history in which the node goes on, or with a healed node the history that it had.
absl::StatusOr<History> Admit(const EpochStart& start, int node, const PresentState& present) {
  const Healing* const healing = HealingOf(start, node);
  if (healing == nullptr) return HistoryInEpoch(start, present);
  EXPECT_EQ(healing->receiver, node);
  if (const absl::Status status = CheckMayBeHealed(start, *healing, present); !status.ok()) return status;
  return present.history;
}

TEST(EpochAdmissionTest, EveryNodeOfEveryWorldOfUpToThreeIsAdmittedOrRefused) {
  int admitted = 0;
  int refused = 0;
  ForEachWorld([&](const WorldCase& world) {
    if (testing::Test::HasFailure()) return;
    SCOPED_TRACE(Name(world));
    const EpochStart start = StartOf(world);
    for (int node = 0; node < world.size(); ++node) {
      const absl::StatusOr<History> history = Admit(start, node, StateOf(world.nodes[node], node));
      const bool may_begin = world.is_healed[node] ? MayGiveUp(world, node) : MayGoOn(world, node);
      ++(may_begin ? admitted : refused);
      if (may_begin) {
        EXPECT_OK(history) << "node " << node;
      } else {
        EXPECT_THAT(history, StatusIs(absl::StatusCode::kAborted, testing::HasSubstr(" of m: "))) << "node " << node;
      }
    }
  });
  EXPECT_GT(admitted, 10'000) << "else the test has seen nothing";
  EXPECT_GT(refused, 10'000) << "else the test has seen nothing";
}

TEST(EpochAdmissionTest, NodesThatKeepTheirStatesGoOnInOneHistory) {
  int begun = 0;
  ForEachWorld([&](const WorldCase& world) {
    if (testing::Test::HasFailure()) return;
    SCOPED_TRACE(Name(world));
    const EpochStart start = StartOf(world);
    std::vector<History> histories;
    for (int node = 0; node < world.size(); ++node) {
      const PresentState present = StateOf(world.nodes[node], node);
      const absl::StatusOr<History> history = Admit(start, node, present);
      if (!history.ok()) return;
      if (world.is_healed[node]) continue;
      histories.push_back(*history);
      EXPECT_TRUE(present.history.id == history->id || present.untouched || world.forks)
          << "commits of node " << node << " are ascribed to another history";
      EXPECT_TRUE(!world.forks || present.numbers.commit_number == kCommit) << "the fork's commit";
    }
    ++begun;
    for (const History& history : histories) {
      EXPECT_EQ(history.id.ToString(), start.history_id);
      EXPECT_EQ(history.lineage.ToString(), start.lineage);
      const bool has_parent = history.parent == HistoryParent{.history = kReported, .commit_number = kCommit};
      EXPECT_EQ(has_parent, world.forks) << "only a fork goes on from another history";
    }
  });
  EXPECT_GT(begun, 1'000) << "else the test has seen nothing";
}

TEST(EpochAdmissionTest, NoStateGoesOnUnderAHistoryIdThatIsNone) {
  for (const Is is : kAll) {
    SCOPED_TRACE(kNames[static_cast<int>(is)]);
    for (const bool forks : {false, true}) {
      EpochStart start = StartOf({.nodes = {is}, .is_healed = {false}, .forks = forks});
      start.history_id = "history";
      EXPECT_THAT(HistoryInEpoch(start, StateOf(is, 0)), StatusIs(absl::StatusCode::kAborted));
    }
  }
}

// Calls `check` with every list of up to `size` numbers from -1 to `last`.
void ForEachList(int last, int size, const std::function<void(const std::vector<int>& list)>& check) {
  std::vector<int> list;
  const std::function<void()> add = [&] {
    check(list);
    if (static_cast<int>(list.size()) == size) return;
    for (int number = -1; number <= last; ++number) {
      list.push_back(number);
      add();
      list.pop_back();
    }
  };
  add();
}

TEST(EpochAdmissionTest, AnEpochHasAllNodesOrSomeThatHoldReplicasWithThisOne) {
  for (int nodes = 1; nodes <= 3; ++nodes) {
    for (const bool has_replicas : {false, true}) {
      if (nodes == 1 && has_replicas) continue;
      for (int node = 0; node < nodes; ++node) {
        ASSERT_OK_AND_ASSIGN(
            const Topology topology,
            Topology::Create({.device_counts = std::vector<int>(nodes, 1), .node = node}, has_replicas ? 1 : nodes));
        std::set<std::vector<int>> epochs;
        for (unsigned members = 0; members < 1u << nodes; ++members) {
          std::vector<int> ascending;
          for (int one = 0; one < nodes; ++one) {
            if ((members >> one & 1) != 0) ascending.push_back(one);
          }
          const bool is_whole = members + 1 == 1u << nodes;
          if ((members >> node & 1) != 0 && (is_whole || has_replicas)) epochs.insert(ascending);
        }
        ForEachList(nodes, nodes + 1, [&](const std::vector<int>& active) {
          const absl::Status status = CheckActive({.model = "m", .epoch = 7, .active = active}, topology);
          EXPECT_EQ(status.code(), epochs.contains(active) ? absl::StatusCode::kOk : absl::StatusCode::kAborted)
              << "node " << node << " of " << nodes << ", replicas " << has_replicas << ": ["
              << absl::StrJoin(active, ", ") << "]";
        });
      }
    }
  }
}

}  // namespace
}  // namespace paramshard::server
