// Which state a model holds, as far as its numbers do not say it.
//
// Commit numbers count what was done to a state, not which state it was done to: daemons with equal numbers hold equal
// bytes only when they began alike. A history begins when a model is created and with every import. Its **lineage**
// says how it began: all daemons make the same one without asking each other, at creation out of the spec, which
// decides every initial value, and at an import out of what was imported. Its **id** says which beginning it was: it is
// drawn at random, so that no two have the same one. When an epoch starts, daemons of one lineage that have made no
// commit since take node 0's id; daemons that differ otherwise do not train together.
#ifndef PARAMSHARD_SERVER_STORE_HISTORY_H_
#define PARAMSHARD_SERVER_STORE_HISTORY_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

struct XXH3_state_s;

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

struct History {
  HistoryId id;
  Lineage lineage;
};

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

// Hashes a tensor's rows as they come, in pieces of any size: the sum, mod 2^128, of XXH3-128(row, seed = its index).
// So it does not depend on slices and on their order.
class RowHasher {
 public:
  explicit RowHasher(int64_t row_bytes);
  RowHasher(RowHasher&& other) noexcept;
  RowHasher& operator=(RowHasher&& other) noexcept;
  ~RowHasher();

  // The next bytes are those of this row, from its start. Requires that no row is half given.
  void Seek(int64_t row) { row_ = row; }
  void Add(absl::Span<const uint8_t> bytes);
  absl::uint128 sum() const { return sum_; }

 private:
  void AddPart(absl::Span<const uint8_t> bytes);

  int64_t row_bytes_;
  int64_t row_ = 0;
  int64_t filled_ = 0;             // bytes of the present row
  XXH3_state_s* state_ = nullptr;  // of a row that comes in parts
  absl::uint128 sum_ = 0;
};

// Hashes a list of numbers.
class Digest {
 public:
  Digest& Add(absl::uint128 number);
  absl::uint128 value() const;

 private:
  std::string bytes_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STORE_HISTORY_H_
