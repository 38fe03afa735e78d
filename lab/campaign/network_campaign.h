// A campaign against worlds of daemons on machines of their own, over Gloo and mTLS: random events hit the network, the
// daemons and their clocks at random times of a commit, and the trainings end as if nothing had happened.
#ifndef PARAMSHARD_LAB_CAMPAIGN_NETWORK_CAMPAIGN_H_
#define PARAMSHARD_LAB_CAMPAIGN_NETWORK_CAMPAIGN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace paramshard::test {

// Events in a world. All but the long ones are over before any daemon may notice.
//
//   cut, mute             a machine is off the network for up to a second, or one hears another no longer
//   cut-long, mute-long   until the training's epoch has ended at every daemon, as keepalive bounds it
//   bad-link              two machines, not node 0, do not hear each other until the others have ended the epoch, to go on
//                         without the higher one: in elastic worlds
//   loss-1, -10, -30      a percentage of packets from and to a machine is lost, for up to a second
//   slow                  a machine sends 2 Mbit/s, for up to a second
//   half-open             the server of a machine ends while the machine is off the network: peers stay connected
//   clock                 the wall clock of a daemon is set, by up to an hour
//   kill-server           kill -9 of a server; its keeper starts a new one
//   kill-daemon           kill -9 of server and keeper, which loses the journal: replicas heal it. Not of node 0
//   kill-node0            the same for node 0, which decides: in worlds where it has a --state-dir
//   second-node0          another node 0 is started with the same flags, on any machine: it is rejected
//   usurp                 the same at node 0's machine, the moment its server is killed, where it has a --state-dir
//   away                  a daemon is killed with its keeper, the others make up to three commits, and it is started
//                         again: in elastic worlds
//   stop, stop-long       SIGSTOP of a server for up to a second, or 16 seconds
//   restart               SIGTERM of a daemon, and a new one; of replicas, and not of node 0
//   rotate                a daemon gets another certificate, and the epoch goes on
//
// Worlds are of shards, of replicas, and of three to five replicas that are elastic: node 0 has the majority of them as
// --min-replicas, and gradients add up to the same for any active nodes. In half of all worlds node 0 has a
// --state-dir.
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
  int64_t at_once = 1;                             // worlds that run at the same time
  absl::Duration time = absl::InfiniteDuration();  // no world begins later
  // World w depends on the seed and w, and on the kernel's scheduling of threads and packets.
  uint64_t seed = 1;
  int64_t first_world = 0;
  // Existing folder for the daemons' logs of worlds that failed or did not start; empty: none.
  std::string logs = {};
  std::optional<NetworkScript> script = {};  // instead of what is drawn of worlds, and of `events`
  bool tells = false;                        // what happens, when, on standard error
};

struct NetworkCampaignResult {
  std::map<std::string, int64_t> events;
  int64_t worlds = 0;
  uint64_t seed = 0;
  // Longest times from an event's end to the next commit, and from a long event's beginning until every daemon has
  // ended its epoch.
  absl::Duration longest_recovery, longest_notice;
  absl::Status status;  // OK, or the invariant that did not hold, with its world

  int64_t EventCount() const;
  std::string Table() const;
  std::string Json() const;
};

// Runs worlds until all are done, time is up, or an invariant does not hold: no answered commit is made twice or lost;
// all trainers finish, each step within a bound; the bytes at every daemon equal those of an undisturbed training of
// the same world, the same at every replica; and in elastic worlds all daemons take part in the end.
// FAILED_PRECONDITION if machines cannot be created; INVALID_ARGUMENT for a script with an event that is impossible in
// its world.
//
// This process must not use gRPC: it forks.
NetworkCampaignResult RunNetworkCampaign(const NetworkCampaignOptions& options);

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_NETWORK_CAMPAIGN_H_
