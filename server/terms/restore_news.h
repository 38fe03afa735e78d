// What the daemons of a world tell each other of a restore: plain values.
//
// Node 0 leads, the others follow. Every restore has an id, which is that of the history that it begins:
//
//   node 0 has checked all that it can -> order: the others do so too -> a report of each: ready
//   all are ready -> go: every daemon writes its rows -> sums and a report of each: written
//   the sums are those of the checkpoint -> end: the state is whole -> a report of each: done
//
// Until the go nothing has changed anywhere. An end before it gives the restore up; whatever goes wrong after it leaves
// no daemon with a state that it would train on.
#ifndef PARAMSHARD_SERVER_TERMS_RESTORE_NEWS_H_
#define PARAMSHARD_SERVER_TERMS_RESTORE_NEWS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace paramshard::server {

// Of node 0.
struct RestoreOrder {
  absl::uint128 id = 0;  // of the restore, and of the history that begins
  // The checkpoint: the name of its folder among the model's, or an absolute path, and the save that is in it.
  std::string folder = {};
  absl::uint128 save_id = 0;
  bool convert_moments = false;
  uint64_t spec_fingerprint = 0;                  // of the model at node 0
  bool creates = false;                           // node 0 creates the model: one that is not here yet is waited for
  absl::Duration timeout = absl::ZeroDuration();  // that is left for all of it
  std::string rollback_why = {};                  // which node has no state any more; empty: somebody has asked for it

  int64_t step = 0;  // of the checkpoint; not sent
  // Of one that goes back: it makes a restore again that somebody has asked for, and that broke off.
  bool was_asked_for = false;

  bool rolls_back() const { return !rollback_why.empty(); }
  friend bool operator==(const RestoreOrder&, const RestoreOrder&) = default;
};

// Of node 0: all are ready.
struct RestoreGo {
  absl::uint128 id = 0;
};

// Of another node: content hashes of its rows, in as many pieces as it takes. They add up.
struct RestoreSums {
  struct Tensor {
    std::string key = {};
    absl::uint128 sum = 0;
    int64_t rows = 0;

    friend bool operator==(const Tensor&, const Tensor&) = default;
  };

  absl::uint128 id = 0;
  int node = 0;  // who says it: the coordinator fills this in
  std::vector<Tensor> tensors = {};
};

// Of another node, while it writes, a few times a second: how far it is with its part.
struct RestorePartProgress {
  absl::uint128 id = 0;
  int node = 0;  // as above
  int64_t done_bytes = 0;
  int64_t all_bytes = 0;
};

enum class RestorePhase : uint8_t {
  kReady,    // all is checked and taken, trainers are held off, nothing has changed
  kWritten,  // every row, and all sums are said
  kDone,     // the model goes on in the new history
};

// Of another node: it has come so far, or will not.
struct RestoreReport {
  absl::uint128 id = 0;
  int node = 0;  // as above
  RestorePhase phase = RestorePhase::kReady;
  absl::Status status = absl::OkStatus();
};

// Of node 0: the state is whole everywhere, or the restore is given up.
struct RestoreEnd {
  absl::uint128 id = 0;
  absl::Status status = absl::OkStatus();
};

// Of another node, where a model is created that is to begin with a checkpoint: which one is node 0's to say, by an
// order or by an answer. Said again every few seconds until then, and withdrawn where an order has come.
struct RestoreWish {
  absl::uint128 id = 0;
  int node = 0;            // as above
  bool withdrawn = false;  // nobody waits for the answer any more
};

// Of node 0. OK: the model begins with its initial values.
struct RestoreAnswer {
  absl::uint128 id = 0;  // of the wish
  absl::Status status = absl::OkStatus();
  // With OK: other daemons have trained it, and one of them heals it when the next epoch starts.
  bool heals = false;
};

// Not sent, and of all models: node 0 is lost.
struct RestoreLeaderLost {
  absl::Status why;
};

// Likewise, at node 0: another node is lost. Of an order that it had part in it has reported so besides.
struct RestoreFollowerLost {
  int node = 0;
};

// Not sent, of the coordinator to its own daemon: every daemon is here, trainers wait, and a node has no state of the
// model. They wait on until a RollbackEnd.
struct RollbackNeed {
  absl::Status why;
};

// Not sent, the answer to that: all have gone back to a saved state, or why not, which trainers that wait are told.
struct RollbackEnd {
  absl::Status status = absl::OkStatus();
};

struct RestoreNews {
  std::string model;
  std::variant<RestoreOrder, RestoreGo, RestorePartProgress, RestoreSums, RestoreReport, RestoreEnd, RestoreWish,
               RestoreAnswer, RestoreLeaderLost, RestoreFollowerLost, RollbackNeed, RollbackEnd>
      what;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_RESTORE_NEWS_H_
