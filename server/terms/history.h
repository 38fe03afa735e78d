// Identity of a model's state, beyond its numbers.
//
// Commit numbers count changes of a state, but do not name the state: daemons with equal numbers hold equal bytes only
// if they began alike. A history begins when a model is created, and with every import and restore. Its **lineage**
// says how it began. All daemons compute the same lineage without asking each other: at a creation from the spec, which
// decides every initial value, at an import from the imported content, at a restore from the checkpoint's id. Its
// **id** is drawn at random, so that every beginning has its own. When an epoch starts, daemons of one lineage that
// have made no commit since take node 0's id; daemons that differ otherwise do not train together.
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
  // INVALID_ARGUMENT any text that is not a result of ToString().
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

// State of another history from which a restore goes on.
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
  std::optional<HistoryParent> parent = {};  // set if a restore began it
  absl::uint128 run = 0;                     // RunDigest of the job that brought the values; 0: not known
  bool values_follow = false;                // the creator announced an import that has not come yet
};

// Origin of a model's values, numbered as v1::ValueOrigin.
enum class ValueOrigin : uint8_t {
  kInitial = 1,  // the spec
  kImporting,    // the spec, until an announced or running import has ended
  kImported,     // without a commit since
  kRestored,     // without a commit since
  kTrained,      // there are commits
  kLost,
};

// Returns the digest of a job's name, which all its ranks give; 0 if it is empty.
absl::uint128 RunDigest(absl::string_view run);

// Source of ids for new histories. Tests give their own.
using HistoryIdSource = std::function<HistoryId()>;
HistoryId RandomHistoryId();

// Identity of a model's state between two commits.
struct StateNumbers {
  HistoryId history;
  int64_t commit_number = 0;
  int64_t version = 0;
};

Lineage LineageOfCreation(uint64_t spec_fingerprint);

// Lineage after a restore of the checkpoint with this id, which brings the whole state.
Lineage LineageOfRestore(uint64_t spec_fingerprint, absl::uint128 checkpoint_id);

// Lineage after an import of tensors with this digest, which sets the numbers to these. If the import brings the
// `whole` state the state before does not matter, and daemons with different states become equal. Else `before` is
// hashed in, since a part of it stays: its lineage if no commit has followed, else its id, and the numbers.
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
