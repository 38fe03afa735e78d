// A campaign against worlds of daemons on machines of their own, over Gloo and mTLS: random events hit the network, the
// daemons and their clocks at random times of a commit, and the trainings end as if nothing had happened.
#ifndef PARAMSHARD_TESTS_NET_NETWORK_CAMPAIGN_H_
#define PARAMSHARD_TESTS_NET_NETWORK_CAMPAIGN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace paramshard::test {

// What happens to a world. All but the long ones are over before anybody is to notice.
//
//   cut, mute             a machine is off the network for up to a second, or one hears another no longer
//   cut-long, mute-long   until the training's epoch has ended at every daemon, as keepalive bounds it
//   bad-link              two machines, not node 0, do not hear each other until the others have ended the epoch, to go on
//                         without the higher one: in elastic worlds
//   loss-1, -10, -30      so many of a hundred packets from and to a machine are lost, for up to a second
//   slow                  a machine sends 2 Mbit/s, for up to a second
//   half-open             the server of a machine ends while that is off the network: the others' connections stay
//   clock                 the wall clock of a daemon is set, by up to an hour
//   kill-server           kill -9 of a server; its keeper starts another one
//   kill-daemon           of the keeper too, so that nothing is left, its journal neither: replicas heal it. Not of node 0
//   kill-node0            the same of node 0, which decides: in worlds where it has a --state-dir
//   second-node0          another node 0 is started with the same flags, on any machine: it is refused
//   usurp                 the same at node 0's machine, the moment its server is killed, where it has a --state-dir
//   away                  a daemon is killed with its keeper, the others make up to three commits, and it is started
//                         again: in elastic worlds
//   stop, stop-long       SIGSTOP of a server for up to a second, or 16 seconds
//   restart               SIGTERM of a daemon, and a new one; of replicas, and not of node 0
//   rotate                a daemon gets another certificate, and the epoch goes on
//
// Worlds are of shards, of replicas, and of three to five replicas that are elastic: node 0 has the majority of them as
// --min-replicas, and gradients add up to the same whoever takes part. In half of all worlds node 0 has a --state-dir.
std::vector<std::string> NetworkEventNames();

enum class NetworkShape { kShards, kReplicas, kElastic };

// A world that is not drawn.
struct NetworkScript {
  NetworkShape shape = NetworkShape::kReplicas;
  int nodes = 2;
  bool keeps_decisions = false;          // node 0 has a --state-dir
  std::vector<std::string> events = {};  // one in each commit; two that end a daemon do not follow each other
};

struct NetworkCampaignOptions {
  std::string daemon;                            // the program
  std::string ctl;                               // the program
  std::string wall_clock;                        // the library that stepped_clock.h wants
  std::vector<std::string> devices = {"cpu:0"};  // one for each node; more nodes than GPUs share them
  std::vector<std::string> only = {};            // events; empty: all. Long ones are drawn more seldom
  int most_nodes = 8;                            // worlds have two nodes at least
  int64_t worlds = 10;
  int64_t events = 20;                             // in each
  int64_t at_once = 1;                             // worlds that run side by side
  absl::Duration time = absl::InfiniteDuration();  // no world begins later
  // World w does what seed and w say. What threads and packets make of it is up to the kernel.
  uint64_t seed = 1;
  int64_t first_world = 0;
  // An existing folder for the daemons' logs of worlds in which something did not hold, or that did not start; empty:
  // none.
  std::string logs = {};
  std::optional<NetworkScript> script = {};  // instead of what is drawn of worlds, and of `events`
  bool tells = false;                        // what happens, when, on standard error
};

struct NetworkCampaignResult {
  std::map<std::string, int64_t> events;
  int64_t worlds = 0;
  uint64_t seed = 0;
  // From an event's end to the next commit, and from a long one's beginning until every daemon has ended its epoch.
  absl::Duration longest_recovery, longest_notice;
  absl::Status status;  // OK, or what did not hold, and in which world

  int64_t EventCount() const;
  std::string Table() const;
  std::string Json() const;
};

// Runs worlds until all are done, time is up, or something does not hold: no answered commit is made twice or lost, all
// trainers get to the end, each step within a bound, the bytes at every daemon are those of a training of the same world
// that nobody has disturbed, at every replica the same, and in elastic worlds all daemons take part in the end.
// FAILED_PRECONDITION where machines cannot be made, INVALID_ARGUMENT a script with an event that its world cannot have.
//
// This process must not use gRPC: it forks.
NetworkCampaignResult RunNetworkCampaign(const NetworkCampaignOptions& options);

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_NET_NETWORK_CAMPAIGN_H_
