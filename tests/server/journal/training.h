// A model that trains, as far as its journal knows: what is written, and what a reader has to find.
#ifndef PARAMSHARD_TESTS_SERVER_JOURNAL_TRAINING_H_
#define PARAMSHARD_TESTS_SERVER_JOURNAL_TRAINING_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/journal/journal.h"
#include "server/journal/recovery.h"

namespace paramshard::server {

// One rank with five bands, one with two, and one whose steps stay in place; four parameters, of which two have
// histories.
JournalIdentity SmallIdentity();
// Without the last rank: no cut loses anything.
JournalIdentity BandedIdentity();

// Zeroed memory for a journal.
class JournalBuffer {
 public:
  explicit JournalBuffer(int64_t size_bytes) : lines_(size_bytes / sizeof(Line)) {}
  explicit JournalBuffer(const JournalIdentity& identity) : JournalBuffer(*Journal::SizeOf(identity)) {}
  absl::Span<uint8_t> bytes() { return {reinterpret_cast<uint8_t*>(lines_.data()), lines_.size() * sizeof(Line)}; }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64] = {};
  };
  std::vector<Line> lines_;
};

// The reference: every commit is a function of its number, and all that follows is counted along without the journal.
class Training {
 public:
  explicit Training(JournalIdentity identity);

  const JournalIdentity& identity() const { return identity_; }
  const JournalNumbers& numbers() const { return numbers_; }
  const JournalEpoch& epoch() const { return epoch_; }

  PreparedCommit Prepared(int64_t number) const;
  DecidedCommit Decided(int64_t number) const;
  // Bands of a rank that Decided(number) applies, in order: lane and how many of it are then done.
  struct Band {
    int lane = 0;
    int count = 0;
  };
  std::vector<Band> Bands(int rank) const;

  void BeginEpoch(int64_t epoch) { epoch_.epoch = epoch; }
  // Daemons settle amaxes of earlier commits, into existing histories.
  void Settle(float amax);
  const std::vector<ScalingChange>& settled() const { return changes_; }
  // Advances by the next commit.
  void Answer();
  // Returns the answered commit for the journal; valid until the next one.
  AnsweredCommit Answered() const;
  // Replaces the whole state; or only the masters, and the entries of the book behind the first `untouched`.
  void Replace();
  void Import(size_t untouched);

 private:
  void AnswerScaling(size_t index, int64_t number);

  JournalIdentity identity_;
  JournalEpoch epoch_;
  JournalNumbers numbers_;
  std::vector<ScalingChange> changes_;
};

// A call on the journal, and what a reader finds after it.
struct TrainingStep {
  std::string name;
  std::function<absl::Status(std::unique_ptr<Journal>& journal, absl::Span<uint8_t> memory, StoreLimit* limit)> call;
  RecoveryPlan after;
};

// A whole life: creation, epochs, commits of which some are skipped and one is given up, imports, a restore, the
// deletion.
std::vector<TrainingStep> WholeTraining(const JournalIdentity& identity, int commits);

// Equal, or lost for the reason that is expected.
bool SamePlan(const RecoveryPlan& plan, const RecoveryPlan& expected);

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_JOURNAL_TRAINING_H_
