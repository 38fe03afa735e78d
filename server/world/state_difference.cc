#include "server/world/state_difference.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace paramshard::server {
namespace {

// Largest number of states that a text names, and of nodes for each state.
constexpr size_t kMostNamed = 16;

std::string StateText(const ModelReport& report) {
  if (!report.lost.ok()) return "none";
  if (report.fresh) return "initial values";
  return absl::StrCat("version ", report.version, " (commit ", report.commit_number, ") of history ",
                      report.history_id);
}

bool AreNamedTogether(const ModelReport& a, const ModelReport& b) {
  return a.lost.ok() == b.lost.ok() && a.fresh == b.fresh && (!a.lost.ok() || a.fresh || IsOneState(a, b));
}

// "a, b and 3 more".
std::string Named(const std::vector<std::string>& all, const char* separator) {
  if (all.size() <= kMostNamed) return absl::StrJoin(all, separator);
  return absl::StrCat(absl::StrJoin(all.begin(), all.begin() + kMostNamed, separator), " and ", all.size() - kMostNamed,
                      " more");
}

}  // namespace

std::string NodesText(const std::vector<int>& nodes, const Membership& members) {
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(nodes.size(), kMostNamed); ++i) names.push_back(NodeName(members, nodes[i]));
  if (nodes.size() > kMostNamed) names.push_back(absl::StrCat(nodes.size() - kMostNamed, " more"));
  return absl::StrJoin(names, " and ");
}

std::string StatesText(const ModelReports& reports, const std::vector<int>& nodes, const Membership& members) {
  std::vector<std::string> states;
  std::vector<int> left = nodes;
  while (!left.empty()) {
    const ModelReport& state = *reports[left.front()];
    const auto others = std::stable_partition(left.begin(), left.end(),
                                              [&](int node) { return AreNamedTogether(state, *reports[node]); });
    states.push_back(absl::StrCat(StateText(state), " on ", NodesText({left.begin(), others}, members)));
    left.erase(left.begin(), others);
  }
  return Named(states, ", ");
}

absl::Status StatesDifferError(const std::string& model, const ModelReports& reports, const std::vector<int>& nodes,
                               const Membership& members) {
  const ModelReport& first = *reports[nodes.front()];
  const bool same_numbers = std::all_of(nodes.begin(), nodes.end(), [&](int node) {
    return reports[node]->commit_number == first.commit_number && reports[node]->version == first.version;
  });
  const bool are_fresh = std::all_of(nodes.begin(), nodes.end(), [&](int node) { return reports[node]->fresh; });
  const std::string out =
      are_fresh ? "they begin with other initial values, or another seed; delete the model on one of "
                  "them and create it with the other's spec"
      : HoldReplicas(reports, members.world_size()) ? absl::StrCat("say which node is right, `", HealCommand(model),
                                                                   "` at node 0, or import the same into every daemon")
      : same_numbers ? "they were imported into differently; import the same into every daemon"
                     : "export from one and import the same into both";
  return absl::FailedPreconditionError(absl::StrCat("start epoch of ", model, ": want one ",
                                                    same_numbers ? "history" : "state", " on all nodes, got ",
                                                    StatesText(reports, nodes, members), ": ", out));
}

absl::Status SpecsDifferError(const std::string& model, const ModelReports& reports, int node, int other,
                              const Membership& members) {
  std::string out = "run one build on all nodes, and start all trainers with the same flags";
  for (const int fresh : {other, node}) {
    if (!reports[fresh]->fresh) continue;
    absl::StrAppend(&out, "; if a trainer created the model with wrong flags, delete it on ", NodeName(members, fresh),
                    ", where it is untrained");
    break;
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("start epoch of %s: want one spec on all nodes, got fingerprint %016x on %s, %016x on %s: %s",
                      model, reports[node]->spec_fingerprint, NodeName(members, node), reports[other]->spec_fingerprint,
                      NodeName(members, other), out));
}

std::string HealCommand(const std::string& model) { return absl::StrCat("paramshardctl heal ", model, " --from=NODE"); }

}  // namespace paramshard::server
