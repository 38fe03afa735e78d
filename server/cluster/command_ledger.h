// The commands of one epoch, compared between nodes.
#ifndef PARAMSHARD_SERVER_CLUSTER_COMMAND_LEDGER_H_
#define PARAMSHARD_SERVER_CLUSTER_COMMAND_LEDGER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace paramshard::server {

// Commands that one node may be ahead of another before the epoch ends.
inline constexpr size_t kMaxOpenCommands = 1 << 16;

// Keeps a command until every node has reported it. Not thread-safe.
class CommandLedger {
 public:
  explicit CommandLedger(int nodes) : nodes_(nodes) {}

  // Adds the command `number` of a node's ranks in words; `rank` sent it first. FAILED_PRECONDITION it differs from
  // another node's (names both ranks and commands); RESOURCE_EXHAUSTED more than kMaxOpenCommands wait for a node.
  absl::Status Add(int node, int64_t number, int rank, absl::string_view command);

 private:
  struct Entry {
    int rank = 0;
    std::string command;
    std::vector<bool> reported;  // by node
  };

  int nodes_;
  std::map<int64_t, Entry> open_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_COMMAND_LEDGER_H_
