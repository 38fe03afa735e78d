// A campaign of readers: many read a training's weights, some with abuse, while readers and servers are killed.
#ifndef PARAMSHARD_LAB_CAMPAIGN_READER_CAMPAIGN_H_
#define PARAMSHARD_LAB_CAMPAIGN_READER_CAMPAIGN_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lab/campaign/readers.h"

namespace paramshard::test {

struct ReaderCampaignOptions {
  std::string daemon;  // the program
  std::string ctl;     // the program
  int64_t rounds = 10;
  int64_t commits = 600;  // of each round's training
  int64_t kills = 6;      // of the server, in each round
  int64_t verifiers = 4;  // beside one reader of each other kind
  absl::Duration reader_hold = absl::Milliseconds(250);
  absl::Duration time = absl::InfiniteDuration();  // no round begins later
  // Round r depends on the seed and r, and on the scheduling of processes.
  uint64_t seed = 1;
  int64_t first_round = 0;
  bool tells = false;  // print what happens, with its time, to standard error
};

struct ReaderCampaignResult {
  uint64_t seed = 0;
  int64_t rounds = 0;
  int64_t commits = 0;
  absl::Duration time;
  std::array<int64_t, kReaderNumbers> numbers = {};  // sums of readers' boards
  int64_t server_kills = 0;
  int64_t decided_kills = 0;  // of these, between the decision of a commit and its answer
  int64_t reader_kills = 0;
  int64_t reading_kills = 0;           // of these, in the middle of a read
  int64_t reader_stops = 0;            // by SIGSTOP
  absl::Duration longest_commit;       // as a trainer sees it, in a server that lives
  absl::Duration longest_calm_commit;  // the same, without readers
  absl::Duration longest_held;         // time that one server's steps have waited for a reader
  double most_held = 0;                // largest part of what --reader-hold and 1 % of the time allow
  absl::Status status;                 // OK, or what did not hold, with its round

  std::string Table() const;
  std::string Json() const;
};

// In each round a daemon with two devices and a keeper trains a model while readers verify each snapshot, are killed and
// stopped, and its server is killed. Then readers are killed, and the server is not. At last the model is deleted and
// created anew, while readers go on. Checks that no reader accepts a wrong value, that the training ends in the bytes of
// an undisturbed one, that commits wait for readers no longer than they may, and that threads and descriptors of the
// server and the keeper are as before.
//
// This process must not use gRPC: it forks.
ReaderCampaignResult RunReaderCampaign(const ReaderCampaignOptions& options);

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_READER_CAMPAIGN_H_
