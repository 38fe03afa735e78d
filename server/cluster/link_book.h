// The links between daemons' data addresses that are cut, and who is left out because of them.
#ifndef PARAMSHARD_SERVER_CLUSTER_LINK_BOOK_H_
#define PARAMSHARD_SERVER_CLUSTER_LINK_BOOK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/base/steady_time.h"
#include "server/cluster/vertex_cover.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// "node 1 (10.9.0.11) and node 2 (10.9.0.12)", the lower node first.
std::string LinkText(int node, const BadLink& link);

// Daemons say which links were bad. The nodes of a smallest cover of them are left out for a stay, and then tried again:
// what was bad of theirs is forgotten, and said again where it still is. A stay is as long as the first one, or twice as
// long as the last one where the node has not taken part for as long as that since; up to 64 times the first. Not
// thread-safe.
class LinkBook {
 public:
  static constexpr absl::Duration kLinkAge = absl::Minutes(1);

  explicit LinkBook(absl::Duration first_stay) : first_stay_(first_stay) {}

  // Said by the node.
  void Add(int node, const BadLink& link, SteadyTime now);
  // Leaves out whom the links that are bad now tell to, from now on, and lets those in who are innocent.
  void LeaveOut(SteadyTime now);
  // Tries those again who were left out for long enough, and forgets links that nobody has named for kLinkAge, unless
  // somebody is left out because of them.
  void TryAgain(SteadyTime now);
  // When the next one has been left out for long enough; unset: nobody is left out.
  std::optional<SteadyTime> NextTry() const;
  // These nodes have made a step together.
  void Worked(const std::vector<int>& nodes, SteadyTime now);
  // The node is lost, or another daemon has taken its place.
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
    SteadyTime until;  // it is left out
    absl::Duration stay;
    bool has_worked = false;  // since
    SteadyTime worked_at;
  };

  absl::Duration NextStay(const Record& record, SteadyTime now) const;
  bool HasBadLink(int node) const;

  const absl::Duration first_stay_;
  std::map<Edge, Bad> bad_;        // by their nodes, the lower first
  std::map<int, Record> records_;  // of nodes that were left out
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_LINK_BOOK_H_
