// Ranks that have detached from an epoch, and the end of the epoch that follows.
#ifndef PARAMSHARD_SERVER_WORLD_DETACHED_RANKS_H_
#define PARAMSHARD_SERVER_WORLD_DETACHED_RANKS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace paramshard::server {

// The epoch ends with the last command that every rank has sent: all commands up to it are carried out on every node,
// later ones on none. Not thread-safe.
class DetachedRanks {
 public:
  // `nodes` are the nodes that take part.
  explicit DetachedRanks(const std::vector<int>& nodes = {}) {
    for (const int node : nodes) progress_[node] = {};
  }

  // Notes that the rank sends no command after its `command_count`-th. Returns true if last_command() has changed.
  bool Add(int rank, int64_t command_count, const absl::Status& why);
  // Notes that the node has carried out all commands up to `command`; `more`: one of its ranks has sent a later one.
  // Ignores a node that takes no part.
  void AddProgress(int node, int64_t command, bool more);

  // The last command that all ranks send; unset while none has detached.
  std::optional<int64_t> last_command() const;
  // Returns why the epoch ends. OK until all `ranks` of the epoch have detached, or until a rank waits for a command
  // that another does not send and every node has carried out all commands before it.
  absl::Status End(int ranks) const;

 private:
  struct Detached {
    int64_t command_count = 0;
    absl::Status why;
  };
  struct Progress {
    int64_t command = -1;
    bool more = false;
  };

  const Detached* First() const;

  std::map<int, Detached> detached_;  // by rank
  std::map<int, Progress> progress_;  // by node
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_DETACHED_RANKS_H_
