// A campaign against a real daemon: rounds with hostile, dying and stopped clients, and after each a check that the
// daemon is unharmed.
#ifndef PARAMSHARD_LAB_CAMPAIGN_CAMPAIGN_H_
#define PARAMSHARD_LAB_CAMPAIGN_CAMPAIGN_H_

#include <csignal>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace paramshard::test {

// Returns the names of the assaults.
//
//   kill-trainer   kill -9 of a trainer in a step, `kills` times; a trainer that is started again ends in the bytes of
//                  the bystander
//   kill-start     the same while it starts
//   stop-trainer   SIGSTOP of a trainer at a random time, SIGCONT after at most three step timeouts
//   stop-daemon    SIGSTOP of the daemon, SIGCONT after at most three
//   stop-both      SIGSTOP of both, one after the other, and SIGCONT in any order
//   clock          steps of the daemon's wall clock by up to two hours: trainings do not notice
//   requests       mutated requests on every method
//   companion socket        random packets on the companion socket
//   descriptors    a limit on the daemon's descriptors, so that an attach fails. Here and in the rounds of other limits
//                  and of SIGSTOP trainers may fail, but each ends by itself, and the model is then trained to its end,
//                  in the bytes of the bystander
//   threads        a limit on its address space, so that stacks of threads do not fit
//   memory         the same, so that a large model does not fit
//   kill-server    kill -9 of the server of another daemon, with a keeper, at any time of a step, `kills` times, and
//                  sometimes of its successors while they start: trainers that come again make no answered commit
//                  twice, and end in the bytes of the bystander
//   kill-decided   the same right after a commit was decided, so that many steps are interrupted
//   kill-world     either of them, in a world of two daemons: the server of one or of both; replicas or shards, which
//                  end in the bytes of an undisturbed training
//   lose-node      kill -9 of a daemon with its keeper, in a world of replicas, `kills` times, and sometimes of its
//                  successors while they are healed: the same
//   kill-any       kill -9 of several trainers, servers and, where replicas heal them, daemons with their keepers at
//                  once, at any point of a step, in `kills` steps, and sometimes of their successors while they start:
//                  in a world of `nodes` daemons, of replicas or of one shard group over all ranks. The survivors are
//                  told within a bound, and the rest is the same
//   ring           a trainer that changes bytes of its command ring
//   words          a trainer that changes words of its page, and moves threads that sleep on them
std::vector<std::string> AssaultNames();
// Returns true if a daemon of one device is enough for the assault.
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
  int64_t at_once = 1;  // rounds that run at the same time; rounds on the whole daemon run alone
  int64_t kills = 1;    // in a round that kills; at most five have a step each, except in kill-any
  // Daemons in the worlds of kill-any, and `cpu` devices of each.
  int nodes = 3;
  int node_devices = 2;
  int64_t rows_factor = 1;  // factor of the number of rows of models whose server is killed
  // Longest time from the beginning of a step, and from a commit's decision, to the kill of a server.
  absl::Duration server_kill_within = absl::Milliseconds(20);
  absl::Duration decided_kill_within = absl::Microseconds(200);
  std::vector<int> server_signals = {SIGKILL};     // one of them, at random, ends a server
  absl::Duration time = absl::InfiniteDuration();  // no round begins later
  // Round r depends on the seed and r, and on the scheduling of threads.
  uint64_t seed = 1;
  int64_t first_round = 0;
  // Existing folder for the logs of kill-any's daemons in rounds that failed; empty: none.
  std::string logs = {};
  bool tells = false;  // print the actions of rounds and of kill-any, with their times, to standard error
};

// Prints a line if the campaign tells.
void Tell(const CampaignOptions& options, const std::string& what);

// Resources of a daemon besides its models' state, as the kernel and the driver count them.
struct Holdings {
  int64_t threads = 0;
  int64_t pool_threads = 0;  // of these, gRPC's: its pools grow with the load, up to a few for each core
  int64_t descriptors = 0;
  int64_t gpu_mebibytes = 0;  // of all GPUs and processes; 0 with `cpu` devices
};

struct CampaignResult {
  struct Count {
    int64_t rounds = 0;
    int64_t trainers = 0;  // killed trainers
    int64_t servers = 0;   // killed servers, without their keepers
    int64_t daemons = 0;   // killed servers with their keepers
    int64_t errors = 0;    // errors that clients got
    int64_t finished = 0;  // steps that a killed server began and the next one finished
    int64_t torn = 0;      // bands that servers were killed in the middle of, in these steps
    // Times in kill-any: from the first death of a step until all others were told, and from the last death until a
    // trainer reached the next commit.
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
  absl::Status status;     // OK, or the invariant that did not hold, with its round

  std::string Table() const;
  std::string Json() const;
};

// Runs rounds until all are done, time is up, or an invariant does not hold: the daemon is alive and answers; the other
// ranks of a hostile trainer are told why their epoch ended; the round's model can be deleted; the bystander, a model
// that no round touches, has its bytes; threads, descriptors and the memory of GPUs are as before.
//
// This process must not use gRPC: it forks.
CampaignResult RunCampaign(const CampaignOptions& options);

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_CAMPAIGN_H_
