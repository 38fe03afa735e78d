// Cut links between daemons' data addresses, and the nodes that are left out because of them.
#ifndef PARAMSHARD_SERVER_WORLD_BAD_LINK_TRACKER_H_
#define PARAMSHARD_SERVER_WORLD_BAD_LINK_TRACKER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/base/steady_time.h"
#include "server/terms/cluster.h"
#include "server/world/vertex_cover.h"

namespace paramshard::server {

// "node 1 (10.9.0.11) and node 2 (10.9.0.12)", the lower node first.
std::string LinkText(int node, const BadLink& link);

// Daemons report bad links. Nodes with an end of each of these links are left out for a stay and then tried again:
// their bad links are forgotten, and reported again if they are still bad. A stay is as long as the first one; or twice
// as long as the last one, up to 64 times the first, if the node has not worked for that long since. Not thread-safe.
class BadLinkTracker {
 public:
  static constexpr absl::Duration kLinkAge = absl::Minutes(1);

  explicit BadLinkTracker(absl::Duration first_stay) : first_stay_(first_stay) {}

  // Notes a bad link that the node reports.
  void Add(int node, const BadLink& link, SteadyTime now);
  // Leaves out nodes with an end of each link that is bad now (VertexCover), and lets all others in.
  void LeaveOut(SteadyTime now);
  // Ends stays that are over, and forgets links that were not reported for kLinkAge, unless a node is left out because
  // of them.
  void TryAgain(SteadyTime now);
  // Returns when the next stay ends; unset: no node is left out.
  std::optional<SteadyTime> NextTry() const;
  // Notes that these nodes have made a step together.
  void Worked(const std::vector<int>& nodes, SteadyTime now);
  // Forgets a node that is lost, or whose place another daemon has taken.
  void Forget(int node);

  // Ascending.
  std::vector<int> left_out() const;
  bool IsLeftOut(int node) const;
  // "node 1 (10.9.0.11) and node 2 (10.9.0.12)", in order.
  std::vector<std::string> Texts() const;

 private:
  struct Bad {
    std::string text;  // in words
    SteadyTime said_at;
  };
  struct Record {
    bool is_left_out = false;
    SteadyTime until;  // end of the stay
    absl::Duration stay;
    bool has_worked = false;  // since the stay
    SteadyTime worked_at;
  };

  absl::Duration NextStay(const Record& record, SteadyTime now) const;
  bool HasBadLink(int node) const;

  const absl::Duration first_stay_;
  std::map<Edge, Bad> bad_;        // by the link's nodes, the lower first
  std::map<int, Record> records_;  // of nodes that were left out
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_BAD_LINK_TRACKER_H_
