// Which state a model holds, as far as its numbers do not say it.
//
// Commit numbers count what was done to a state, not which state it was done to: daemons with equal numbers hold equal
// bytes only when they began alike. A history begins when a model is created, and with every import and restore. Its
// **lineage** says how it began: all daemons make the same one without asking each other, at creation out of the spec,
// which decides every initial value, at an import out of what was imported, and at a restore out of the checkpoint's
// id. Its **id** says which beginning it was: it is drawn at random, so that no two have the same one. When an epoch
// starts, daemons of one lineage that have made no commit since take node 0's id; daemons that differ otherwise do not
// train together.
#ifndef PARAMSHARD_SERVER_TERMS_HISTORY_H_
#define PARAMSHARD_SERVER_TERMS_HISTORY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace paramshard::server {

struct HistoryId {
  absl::uint128 value = 0;

  // 32 hexadecimal digits.
  std::string ToString() const;
  // INVALID_ARGUMENT for anything else than what ToString() gives.
  static absl::StatusOr<HistoryId> Parse(absl::string_view text);

  friend bool operator==(const HistoryId& a, const HistoryId& b) { return a.value == b.value; }
  friend bool operator!=(const HistoryId& a, const HistoryId& b) { return !(a == b); }
};

struct Lineage {
  absl::uint128 value = 0;

  // 32 hexadecimal digits.
  std::string ToString() const;

  friend bool operator==(const Lineage& a, const Lineage& b) { return a.value == b.value; }
  friend bool operator!=(const Lineage& a, const Lineage& b) { return !(a == b); }
};

// The state of another history from which one goes on, by a restore.
struct HistoryParent {
  HistoryId history;
  int64_t commit_number = 0;

  friend bool operator==(const HistoryParent& a, const HistoryParent& b) {
    return a.history == b.history && a.commit_number == b.commit_number;
  }
};

struct History {
  HistoryId id;
  Lineage lineage;
  std::optional<HistoryParent> parent = {};  // of one that a restore has begun
  absl::uint128 run = 0;                     // RunDigest of the job that brought the values; 0: not known
  bool values_follow = false;                // the creator announced an import, and none has come
};

// Where the values of a model come from. Numbers are those of v1::ValueOrigin.
enum class ValueOrigin : uint8_t {
  kInitial = 1,  // the spec
  kImporting,    // the spec, until an import that was announced or is under way is through
  kImported,     // without a commit since
  kRestored,     // without a commit since
  kTrained,      // there are commits
  kLost,
};

// Digest of the text by which the ranks of one job name it; 0 for an empty one.
absl::uint128 RunDigest(absl::string_view run);

// Says the ids of histories that begin. Tests give their own.
using HistoryIdSource = std::function<HistoryId()>;
HistoryId RandomHistoryId();

// Names what a model is at a moment between two commits.
struct StateNumbers {
  HistoryId history;
  int64_t commit_number = 0;
  int64_t version = 0;
};

Lineage LineageOfCreation(uint64_t spec_fingerprint);

// After a restore of the checkpoint with this id, which brings the whole state.
Lineage LineageOfRestore(uint64_t spec_fingerprint, absl::uint128 checkpoint_id);

// After an import of tensors with this digest, which sets the numbers to these. Where the import brings the `whole`
// state nothing of what was before matters, and daemons that had different states become equal; else `before` is hashed
// in, since a part of it stays: the lineage where no commit has followed it, else the id, and the numbers.
struct ImportedContent {
  absl::uint128 digest = 0;
  bool whole = false;
};
struct StateBefore {
  absl::uint128 origin = 0;  // lineage or id
  int64_t commit_number = 0;
  int64_t version = 0;
};
Lineage LineageOfImport(uint64_t spec_fingerprint, const ImportedContent& content, const StateBefore& before,
                        int64_t commit_number, int64_t version);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_HISTORY_H_
