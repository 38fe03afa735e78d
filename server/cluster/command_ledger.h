// The commands that nodes say they have sent, when those of one epoch may differ.
#ifndef PARAMSHARD_SERVER_CLUSTER_COMMAND_LEDGER_H_
#define PARAMSHARD_SERVER_CLUSTER_COMMAND_LEDGER_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// Commands of one node that are compared; of more the first ones.
inline constexpr size_t kMostReportedCommands = 1 << 14;

// It takes the word of nodes that were asked, once. Not thread-safe.
class CommandLedger {
 public:
  // The node may have something to say.
  void Ask(int node) { asked_.insert(node); }
  // It has. False where that was said before.
  bool Demand(int node) {
    Ask(node);
    return demanded_.insert(node).second;
  }
  bool HasReported(int node) const { return reported_.contains(node); }

  // Compares the commands of a node with those of the others. FAILED_PRECONDITION one differs from another node's (names
  // both ranks and commands), or all who were to report have, and none does that they still know.
  absl::Status Add(int node, const std::vector<CommandInWords>& commands);

 private:
  absl::Status Compare(const CommandInWords& command);
  bool Complete() const;

  std::set<int> asked_, demanded_, reported_;
  std::map<int64_t, CommandInWords> commands_;  // by number: who reported it first
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_COMMAND_LEDGER_H_
