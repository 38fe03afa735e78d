#include "lab/campaign/deaths.h"

#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lab/campaign/moments.h"

namespace paramshard::test {
namespace {

constexpr absl::Duration kLongestPause = absl::Milliseconds(20);
// Largest number of successors that die: after five failed starts in a row a keeper waits for an operator.
constexpr size_t kMostAgain = 3;

// Longest time from a successor's start to its death: while it starts, or is healed.
absl::Duration LongestLife(Mortal mortal) {
  constexpr absl::Duration kOfATrainer = absl::Milliseconds(300);
  constexpr absl::Duration kOfAServer = absl::Milliseconds(100);
  constexpr absl::Duration kOfADaemon = absl::Seconds(1);
  switch (mortal) {
    case Mortal::kTrainer:
      return kOfATrainer;
    case Mortal::kServer:
      return kOfAServer;
    case Mortal::kDaemon:
      return kOfADaemon;
  }
  return absl::ZeroDuration();
}

// Draws one death after the other, and skips those that the deaths before rule out.
class Draw {
 public:
  Draw(const DeathOptions& options, std::mt19937_64& random) : options_(options), random_(random) {}

  void AddTrainer() { Add(Mortal::kTrainer, static_cast<int>(random_() % options_.ranks), trainers_); }

  void AddServer(int node) {
    if (!lost_.contains(BeforeOf(node)) && !nodes_.contains(node)) Add(Mortal::kServer, node, nodes_);
  }

  void AddDaemon(int node) {
    if (node == 0 && !options_.node0_heals) return AddServer(node);
    if (nodes_.contains(node) || nodes_.contains(BehindOf(node)) || lost_.contains(BeforeOf(node))) return;
    lost_.insert(node);
    Add(Mortal::kDaemon, node, nodes_);
  }

  std::vector<Death> Take() { return std::move(deaths_); }

 private:
  int BehindOf(int node) const { return (node + 1) % options_.nodes; }
  int BeforeOf(int node) const { return (node + options_.nodes - 1) % options_.nodes; }

  void Add(Mortal mortal, int number, std::set<int>& taken) {
    if (!taken.insert(number).second) return;
    Death death{.mortal = mortal, .number = number, .pause = UpTo(kLongestPause, random_)};
    while (death.again.size() < kMostAgain && random_() % 4 == 0) {
      death.again.push_back(UpTo(LongestLife(mortal), random_));
    }
    deaths_.push_back(std::move(death));
  }

  const DeathOptions& options_;
  std::mt19937_64& random_;
  std::vector<Death> deaths_;
  std::set<int> trainers_;  // ranks whose trainers die
  std::set<int> nodes_;     // whose servers or daemons do
  std::set<int> lost_;      // of these, the daemons
};

}  // namespace

std::vector<Death> DrawDeaths(const DeathOptions& options, std::mt19937_64& random) {
  Draw draw(options, random);
  if (random() % 10 == 0) {
    for (int node = 0; node < options.nodes; ++node) draw.AddServer(node);
    return draw.Take();
  }
  for (uint64_t left = 1 + random() % 4; left > 0; --left) {
    const auto node = static_cast<int>(random() % options.nodes);
    const uint64_t kind = random() % 6;
    if (kind < 3) {
      draw.AddTrainer();
    } else if (kind < 5 || !options.replicas) {
      draw.AddServer(node);
    } else {
      draw.AddDaemon(node);
    }
  }
  return draw.Take();
}

std::string Describe(absl::Span<const Death> deaths) {
  constexpr absl::string_view kNames[] = {"rank ", "the server of node ", "node "};
  return absl::StrJoin(deaths, ", ", [&](std::string* out, const Death& death) {
    absl::StrAppend(out, kNames[static_cast<int>(death.mortal)], death.number);
    if (!death.again.empty()) absl::StrAppend(out, " and ", death.again.size(), " that followed");
  });
}

}  // namespace paramshard::test
