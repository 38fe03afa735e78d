// A campaign against worlds of daemons on machines of their own, over Gloo and mTLS: random events hit the network, the
// daemons and their clocks at random times of a commit, and the trainings end as if nothing had happened.
#ifndef PARAMSHARD_TESTS_NET_NETWORK_CAMPAIGN_H_
#define PARAMSHARD_TESTS_NET_NETWORK_CAMPAIGN_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace paramshard::test {

// What happens to a world. All but the long ones are over before anybody is to notice.
//
//   cut, mute             a machine is off the network for up to a second, or one hears another no longer
//   cut-long, mute-long   until the training's epoch has ended at every daemon, as keepalive bounds it
//   loss-1, -10, -30      so many of a hundred packets from and to a machine are lost, for up to a second
//   slow                  a machine sends 2 Mbit/s, for up to a second
//   half-open             the server of a machine ends while that is off the network: the others' connections stay
//   clock                 the wall clock of a daemon is set, by up to an hour
//   kill-server           kill -9 of a server; its keeper starts another one
//   kill-daemon           of the keeper too, so that nothing is left: replicas heal it. Not of node 0, which decides
//   stop, stop-long       SIGSTOP of a server for up to a second, or 16 seconds
//   restart               SIGTERM of a daemon, and a new one; of replicas, and not of node 0
//   rotate                a daemon gets another certificate, and the epoch goes on
std::vector<std::string> NetworkEventNames();

struct NetworkCampaignOptions {
  std::string daemon;             // the program
  std::string ctl;                // the program
  std::string wall_clock;         // the library that stepped_clock.h wants
  std::vector<std::string> only;  // events; empty: all. Long ones are drawn more seldom
  int most_nodes = 8;             // worlds have two nodes at least
  int64_t worlds = 10;
  int64_t events = 20;                             // in each
  int64_t at_once = 1;                             // worlds that run side by side
  absl::Duration time = absl::InfiniteDuration();  // no world begins later
  // World w does what seed and w say. What threads and packets make of it is up to the kernel.
  uint64_t seed = 1;
  int64_t first_world = 0;
  std::string logs;  // an existing folder for the daemons' logs of worlds in which something did not hold; empty: none
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
// trainers get to the end, each step within a bound, and the bytes at every daemon are those of a training of the same
// world that nobody has disturbed, at every replica the same. FAILED_PRECONDITION where machines cannot be made.
//
// This process must not use gRPC: it forks.
NetworkCampaignResult RunNetworkCampaign(const NetworkCampaignOptions& options);

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_NET_NETWORK_CAMPAIGN_H_
