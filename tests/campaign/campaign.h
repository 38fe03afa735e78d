// A campaign against a real daemon: rounds of what hostile, dying and stopped clients do to it, and after each the
// question whether it still is what it was.
#ifndef PARAMSHARD_TESTS_CAMPAIGN_CAMPAIGN_H_
#define PARAMSHARD_TESTS_CAMPAIGN_CAMPAIGN_H_

#include <csignal>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace paramshard::test {

// The names of what a round can do.
//
//   kill-trainer   kill -9 of a trainer in a step, as often as a round is to kill; one that is started again ends in
//                  the bytes of the bystander
//   kill-start     the same while it starts
//   stop-trainer   SIGSTOP of a trainer at a random time, SIGCONT after at most three step timeouts
//   stop-daemon    SIGSTOP of the daemon, SIGCONT after at most three
//   stop-both      SIGSTOP of both, one after the other, and SIGCONT in any order
//   clock          steps of the daemon's wall clock by up to two hours: trainings do not notice
//   requests       mutated requests on every method
//   handoff        random packets on the companion socket
//   descriptors    a limit on the daemon's descriptors, so that an attach finds none. Here and in the rounds of other
//                  limits and of SIGSTOP trainers may fail, but each ends by itself, and the model is then trained to
//                  its end, in the bytes of the bystander
//   threads        a limit on its address space, so that stacks of threads do not fit
//   memory         the same, so that a large model does not fit
//   kill-server    kill -9 of the server of another daemon, with a keeper, at any time of a step, as often as a round
//                  is to kill, and now and then of those that follow while they start: trainers that come again make no
//                  answered commit twice, and end in the bytes of the bystander
//   kill-decided   the same right after a commit was decided, so that many steps are cut off
//   kill-world     either of them, in a world of two daemons: the server of one or of both; replicas or shards, which
//                  end in the bytes of a training that nobody has disturbed
//   lose-node      kill -9 of a daemon with its keeper, in a world of replicas, as often as a round is to kill, and now
//                  and then of those that follow while they are healed: the same
//   kill-any       kill -9 of several trainers, servers and, where replicas heal them, daemons with their keepers at
//                  once, at any point of a step, in as many steps as a round is to kill, and now and then of those that
//                  take their place while they start: in a world of `nodes` daemons, of replicas or of one shard group
//                  over all ranks. The others are told within a bound, and the rest is the same
//   ring           a trainer that changes bytes of its command ring
//   words          a trainer that changes words of its page, and moves threads that sleep on them
std::vector<std::string> AssaultNames();
// Those that a daemon of one device is enough for.
bool NeedsOneRank(const std::string& assault);

struct CampaignOptions {
  std::string daemon;      // the program
  std::string ctl;         // the program
  std::string wall_clock;  // the library that stepped_clock.h wants
  // The daemon's, two of one kind; one is enough for kill-server and kill-decided. On GPUs a campaign asks nvidia-smi
  // how much of their memory is taken.
  std::vector<std::string> devices = {"cpu:0", "cpu:1"};
  int ranks() const { return static_cast<int>(devices.size()); }
  std::vector<std::string> assaults;  // empty: all, in turn
  int64_t rounds = 100;
  int64_t at_once = 1;  // rounds that run side by side, but for those that do something to the whole daemon
  int64_t kills = 1;    // in a round that kills; at most five have a step each, but for kill-any
  // The worlds of kill-any have so many daemons of so many `cpu` devices each.
  int nodes = 3;
  int node_devices = 2;
  int64_t rows_factor = 1;  // of models whose server is killed: how many times the rows of others they have
  // How long after the beginning of a step, and after a commit was decided, servers are killed at the latest.
  absl::Duration server_kill_within = absl::Milliseconds(20);
  absl::Duration decided_kill_within = absl::Microseconds(200);
  std::vector<int> server_signals = {SIGKILL};     // one of them ends a server
  absl::Duration time = absl::InfiniteDuration();  // no round begins later
  // Round r does what seed and r say. What threads make of it is up to the scheduler.
  uint64_t seed = 1;
  int64_t first_round = 0;
  // An existing folder for the logs of kill-any's daemons where something did not hold; empty: none.
  std::string logs = {};
  bool tells = false;  // what rounds and kill-any do, when, on standard error
};

// A line of a campaign that tells.
void Tell(const CampaignOptions& options, const std::string& what);

// What a daemon holds besides its models' state, as the kernel and the driver count it.
struct Holdings {
  int64_t threads = 0;
  int64_t pool_threads = 0;  // of these, gRPC's: its pools grow with the load, up to a few for each core
  int64_t descriptors = 0;
  int64_t gpu_mebibytes = 0;  // of all GPUs and processes; 0 with `cpu` devices
};

struct CampaignResult {
  struct Count {
    int64_t rounds = 0;
    int64_t trainers = 0;  // that were killed
    int64_t servers = 0;   // likewise, whose keeper was not
    int64_t daemons = 0;   // likewise, with their keepers
    int64_t errors = 0;    // that clients were answered
    int64_t finished = 0;  // steps that were cut off with a server and finished by the next one
    int64_t torn = 0;      // bands of these steps that the server was in the middle of
    // Of kill-any: from the first death of a step until all others were told, and from the last one until a trainer had
    // come to the next commit.
    absl::Duration longest_notice, longest_recovery;

    int64_t kills() const { return trainers + servers + daemons; }
    void Add(const Count& other);
  };
  std::map<std::string, Count> counts;
  int64_t rounds = 0;
  uint64_t seed = 0;
  int nodes = 0;  // of the worlds of kill-any
  int node_devices = 0;
  absl::Duration time;     // that all rounds took
  Holdings before, after;  // a first training; all rounds
  std::string state_hash;  // of the bystander, which did not change
  absl::Status status;     // OK, or what did not hold, and in which round

  std::string Table() const;
  std::string Json() const;
};

// Runs rounds until all are done, time is up, or something does not hold: the daemon is alive and answers; the other
// ranks of a hostile one hear why their epoch ended; the model that was fought over can be deleted; the bystander, a
// model that nobody touches, has its bytes; threads, descriptors and the memory of GPUs are as before.
//
// This process must not use gRPC: it forks.
CampaignResult RunCampaign(const CampaignOptions& options);

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_CAMPAIGN_CAMPAIGN_H_
