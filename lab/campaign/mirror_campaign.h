// A campaign against mirrors of a training, each on a machine of its own with a reader beside it, over Gloo and mTLS:
// random events hit the network, the mirrors and the daemons of the training.
#ifndef PARAMSHARD_LAB_CAMPAIGN_MIRROR_CAMPAIGN_H_
#define PARAMSHARD_LAB_CAMPAIGN_MIRROR_CAMPAIGN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace paramshard::test {

// Longest time from the end of an event, and from the last commit, until every reader beside a mirror has that commit. A
// transfer whose owner says nothing is given up after 32 s, the retry comes a second later, and gRPC connects anew after
// two; the rest is for a busy machine.
inline constexpr absl::Duration kFreshBound = absl::Seconds(45);

// Events of a world. Those of mirrors delay no commit.
//
//   mirror-cut            a mirror's machine is off the network for up to a second
//   mirror-cut-long       likewise for 12 seconds: both ends have given a transfer up
//   mirror-mute, -deaf    a mirror is not heard by one of the daemons, or does not hear it, for up to a second
//   mirror-mute-long, mirror-deaf-long   likewise for 12 seconds
//   mirror-loss           10 percent of packets from and to a mirror are lost, for up to 3 seconds
//   mirror-slow           a mirror receives 80 Mbit/s, above the least rate, for up to 3 seconds
//   mirror-crawl          a mirror receives 1 Mbit/s for 12 seconds: it is cut off
//   mirror-kill           kill -9 of a mirror, which is started again
//   mirror-stop, -stop-long   SIGSTOP of a mirror for up to a second, or 16 seconds
//   mirror-rotate         a mirror gets another certificate
//   cut, cut-long, mute, loss   a daemon's machine, as in network_campaign.h; cut-long is 12 seconds
//   kill                  kill -9 of a daemon's server, which a keeper follows
//   half-open             likewise while its machine is off the network
//   rotate                a daemon gets another certificate
//   delete                the model is deleted and created anew, with other values
//   restore               the model goes back to a checkpoint, in a new history
std::vector<std::string> MirrorEventNames();

// A world that is not drawn.
struct MirrorScript {
  int nodes = 2;  // of the training: 2 or 4
  int mirrors = 1;
  std::vector<std::string> events = {};
};

struct MirrorCampaignOptions {
  std::string daemon;                  // the program
  std::string ctl;                     // the program
  std::string wall_clock;              // the library that stepped_clock.h wants
  std::vector<std::string> only = {};  // events; empty: all. Long ones are drawn more seldom
  int64_t worlds = 10;
  int64_t events = 20;                             // in each
  absl::Duration time = absl::InfiniteDuration();  // no event begins later
  // World w depends on the seed and w, and on the kernel's scheduling of threads and packets.
  uint64_t seed = 1;
  int64_t first_world = 0;
  // Existing folder for the daemons' logs of a world that failed; empty: none.
  std::string logs = {};
  std::optional<MirrorScript> script = {};  // instead of what is drawn of worlds, and of `events`
  bool tells = false;                       // what happens, when, on standard error
};

struct MirrorCampaignResult {
  struct Event {
    int64_t count = 0;
    absl::Duration longest_fresh;   // from its end, and from the last commit, until all readers have that
    absl::Duration longest_commit;  // beside it, from the call to the answer
  };
  std::map<std::string, Event> events;
  int64_t worlds = 0;
  int64_t commits = 0;
  uint64_t seed = 0;
  int64_t accepted = 0;    // snapshots beside mirrors, with every value right
  int64_t versions = 0;    // different ones of these, one after the other
  int64_t ended = 0;       // snapshots that ended while they were read, or whose mirror died
  double most_waited = 0;  // largest part of what --reader-hold and 1 % of the time allow
  absl::Status status;     // OK, or what did not hold, with its world

  int64_t EventCount() const;
  std::string Table() const;
  std::string Json() const;
};

// Runs worlds until all are done, time is up, or something does not hold: no reader accepts a wrong value; steps wait
// for mirrors no longer than they may, and no commit beside an event of mirrors is slow; after each event every reader
// beside a mirror gets the newest version within kFreshBound; and no daemon keeps an image when all is quiet.
// FAILED_PRECONDITION if machines cannot be created; INVALID_ARGUMENT for a script with an unknown event.
//
// This process must not use gRPC: it forks.
MirrorCampaignResult RunMirrorCampaign(const MirrorCampaignOptions& options);

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_MIRROR_CAMPAIGN_H_
