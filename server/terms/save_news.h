// What the daemons of a world tell each other of a save: plain values.
//
// Node 0 leads, the others follow:
//
//   node 0 holds its state -> order: the others hold theirs at the same commit; all copy
//   node 0 makes the folder -> permission: all write into it -> a part of each other node
//   node 0 publishes it, or gives it up -> end
#ifndef PARAMSHARD_SERVER_TERMS_SAVE_NEWS_H_
#define PARAMSHARD_SERVER_TERMS_SAVE_NEWS_H_

#include <cstdint>
#include <string>
#include <variant>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace paramshard::server {

enum class SaveState : uint8_t {
  kWaiting,  // for the answer of a commit
  kCopying,
  kWriting,
  kPublished,
  kAbandoned,     // there is no such checkpoint
  kUnknown,       // it has its name, and nobody knows whether it has it after the power fails
  kSkipped,       // it fell due while another one was under way
  kAlreadySaved,  // there was a checkpoint of this state before it
};
inline bool IsOver(SaveState state) { return state >= SaveState::kPublished; }
// Whether there is a checkpoint of the state then, which may be counted on.
inline bool HasCheckpoint(SaveState state) {
  return state == SaveState::kPublished || state == SaveState::kAlreadySaved;
}

// What made a save fall due.
enum class SaveReason : uint8_t { kCommits, kTime, kTrainer, kCall, kDrain };

// Of node 0. Whoever has made commit `step` holds its state until it is copied; nobody makes the next one before.
struct SaveOrder {
  absl::uint128 id = 0;  // of the save
  int64_t step = 0;      // the commit number
  int64_t version = 0;
  std::string lineage = {};  // as in ModelReport
  std::string history_id = {};
  uint64_t spec_fingerprint = 0;
  SaveReason reason = SaveReason::kCall;
  absl::Duration timeout = absl::ZeroDuration();  // that is left for all of it

  friend bool operator==(const SaveOrder&, const SaveOrder&) = default;
};

// Of node 0: the folder is there.
struct SavePermission {
  absl::uint128 id = 0;
};

// Of another node: all that it writes is on the disk, or will not be.
struct SavePart {
  absl::uint128 id = 0;
  int node = 0;            // who says it: the coordinator fills this in
  absl::uint128 hash = 0;  // of its part-NODE.json
  absl::Status status = absl::OkStatus();
};

// Of node 0: what became of it. It also answers a wish, with no id where there was nothing to do.
struct SaveEnd {
  absl::uint128 id = 0;
  SaveState state = SaveState::kAbandoned;
  std::string path = {};  // of the checkpoint, where there may be one
  int64_t size_bytes = 0;
  absl::Status why = absl::OkStatus();
};

// Of another node, which drains: what no save has is to be saved.
struct SaveWish {};

// Not sent, and of all models: node 0 is lost.
struct SaveLeaderLost {
  absl::Status why;
};

struct SaveNews {
  std::string model;
  std::variant<SaveOrder, SavePermission, SavePart, SaveEnd, SaveWish, SaveLeaderLost> what;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_SAVE_NEWS_H_
