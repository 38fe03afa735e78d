// Commands that nodes report, to find where the commands of an epoch differ.
#ifndef PARAMSHARD_SERVER_WORLD_COMMAND_LEDGER_H_
#define PARAMSHARD_SERVER_WORLD_COMMAND_LEDGER_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// Largest number of commands of one node that are compared, from its first one on.
inline constexpr size_t kMostReportedCommands = 1 << 14;

// Takes one report of each node that was asked. Not thread-safe.
class CommandLedger {
 public:
  // Allows the node to report.
  void Ask(int node) { asked_.insert(node); }
  // Requires the node to report. Returns false if it was required already.
  bool Demand(int node) {
    Ask(node);
    return demanded_.insert(node).second;
  }
  bool HasReported(int node) const { return reported_.contains(node); }

  // Compares the commands of a node with the other nodes' commands. FAILED_PRECONDITION a command differs (names both
  // ranks and commands), or all required nodes have reported and the commands that they remember are equal.
  absl::Status Add(int node, const std::vector<CommandInWords>& commands);

 private:
  absl::Status Compare(const CommandInWords& command);
  bool Complete() const;

  std::set<int> asked_, demanded_, reported_;
  std::map<int64_t, CommandInWords> commands_;  // by number: the first report of it
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_COMMAND_LEDGER_H_
