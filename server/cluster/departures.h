// The ranks that have detached from one epoch, and when the epoch ends for it.
#ifndef PARAMSHARD_SERVER_CLUSTER_DEPARTURES_H_
#define PARAMSHARD_SERVER_CLUSTER_DEPARTURES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace paramshard::server {

// The first command that some rank does not send is the last one of the epoch: what comes before it is carried out on
// every node, and what comes behind it on none. Not thread-safe.
class Departures {
 public:
  // Of the nodes that take part.
  explicit Departures(const std::vector<int>& nodes = {}) {
    for (const int node : nodes) progress_[node] = {};
  }

  // The rank has sent its `command_count`-th command and sends no other. Whether last_command() is another by now.
  bool Add(int rank, int64_t command_count, const absl::Status& why);
  // The node has carried out all commands up to this one; `more`: one of its ranks has sent a later one. Ignored of one
  // that takes no part.
  void AddProgress(int node, int64_t command, bool more);

  // The last command that all ranks send; unset while none has detached.
  std::optional<int64_t> last_command() const;
  // Why the epoch ends: OK until all `ranks` of the epoch have detached, or one waits for what another does not send
  // and everything before that is carried out on every node.
  absl::Status End(int ranks) const;

 private:
  struct Departure {
    int64_t command_count = 0;
    absl::Status why;
  };
  struct Progress {
    int64_t command = -1;
    bool more = false;
  };

  const Departure* First() const;

  std::map<int, Departure> departed_;  // by rank
  std::map<int, Progress> progress_;   // by node
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_DEPARTURES_H_
