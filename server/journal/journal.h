// A model's journal: state for the next server if this one dies, in memory that outlives it.
#ifndef PARAMSHARD_SERVER_JOURNAL_JOURNAL_H_
#define PARAMSHARD_SERVER_JOURNAL_JOURNAL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/journal/amax_rings.h"
#include "server/journal/journal_bytes.h"
#include "server/journal/journal_codec.h"
#include "server/journal/journal_content.h"
#include "server/journal/journal_layout.h"
#include "server/journal/journal_reader.h"
#include "server/journal/journal_stores.h"

namespace paramshard::server {

// Writer of a journal. A call makes some stores and a hash, and does not wait. At whichever store a process dies, a
// reader (recovery.h) finds the content before the call or after it.
//
//   journal = Journal::Create(memory, identity)       writes `creating`
//   ...  the model's memory is made and filled in ...
//   journal->SetUsable(epoch, numbers)
//
//   journal->BeginEpoch(number, history)              before an epoch begins
//   journal->Settle(scalings)                         when daemons have settled amaxes at its start
//   journal->Prepare(commit)                          before the vote
//   journal->Decide(decision)                         before the decision is told to others, and before a step
//   journal->MarkBegun(rank, lane, n), MarkDone(...)  around every band
//   journal->Answer(commit)                           before the trainers see the answer
//
// Not thread-safe except for marks, of which each lane of a rank may have a thread of its own. Errors are bugs of this
// program, except too long client states: INVALID_ARGUMENT invalid content, FAILED_PRECONDITION a call out of order. A
// call that fails writes nothing.
class Journal {
 public:
  // Returns the bytes of memory of a model's journal. INVALID_ARGUMENT an invalid identity.
  static absl::StatusOr<int64_t> SizeOf(const JournalIdentity& identity);

  // Begins a journal in zeroed memory of exactly that size, aligned to 64 bytes, which outlives it. `limit`: see
  // journal_stores.h.
  static absl::StatusOr<std::unique_ptr<Journal>> Create(absl::Span<uint8_t> memory, const JournalIdentity& identity,
                                                         StoreLimit* limit = nullptr);

  // Continues a journal of another process, which writes it no more, after its published content. Errors of
  // JournalReader; DATA_LOSS it was not begun. Only SetUsable writes damaged content anew.
  static absl::StatusOr<std::unique_ptr<Journal>> Adopt(absl::Span<uint8_t> memory, StoreLimit* limit = nullptr);

  const JournalIdentity& identity() const { return identity_; }
  // True if the model has been usable, so that the next server has a part of it.
  bool is_made() const { return lifecycle_ != JournalLifecycle::kCreating; }

  // --- Lifecycle

  // Records that the state is whole, with these numbers, after it was made or changed. One store publishes it. Up to
  // that store the old numbers stay whole if the new state has no client states, and its histories are the old ones or
  // have one amax, as after an import: an import from files is made again over the old numbers.
  absl::Status SetUsable(const JournalEpoch& epoch, const JournalNumbers& numbers);
  // Called before the first byte of the state is replaced. A failed change stays recorded.
  absl::Status BeginChange(const ChangeSource& source);

  // --- Commits of a usable model

  // Begins an epoch, with a number that no epoch of the history had. From the first epoch on the history's id is node
  // 0's.
  absl::Status BeginEpoch(int64_t epoch, const HistoryId& history);
  // The same for an epoch with which a history may begin, at the commit number `begin`.
  absl::Status BeginEpoch(int64_t epoch, const History& history, int64_t begin);
  // Records amaxes that were settled outside of a commit, by scaling of the identity's book. Requires that no commit is
  // prepared.
  absl::Status Settle(absl::Span<const ScalingChange> scalings);
  // Prepares the commit after the last answered one.
  absl::Status Prepare(const PreparedCommit& commit);
  // Drops the prepared commit, which no daemon applies.
  absl::Status Withdraw();
  absl::Status Decide(const DecidedCommit& commit);
  // Answers the decided commit. Marks have no meaning after it.
  absl::Status Answer(const AnsweredCommit& commit);

  // Number of the last decided commit, here or before the journal was adopted.
  int64_t decided_commit() const { return decided_.commit_number; }

  // --- Marks of the decided commit. `rank` counts from this daemon's first

  // Record that `count` of the lane's bands are begun, or done with their bytes in memory. Without bands the whole step
  // is the only band of lane 0.
  void MarkBegun(int rank, int lane, int count) { Mark(BegunMark(layout_, rank, lane), count); }
  void MarkDone(int rank, int lane, int count) { Mark(DoneMark(layout_, rank, lane), count); }
  // Offsets for a device that writes the words itself, in stores of 8 bytes: MarkWord(commit number, count).
  struct MarkOffsets {
    int64_t begun = 0;
    int64_t done = 0;
  };
  MarkOffsets mark_offsets(int rank, int lane) const {
    return {.begun = BegunMark(layout_, rank, lane), .done = DoneMark(layout_, rank, lane)};
  }

 private:
  Journal(JournalIdentity identity, const JournalLayout& layout, const JournalShape& shape, JournalStores stores);

  void WriteHeader(absl::Span<const uint8_t> identity);
  void WriteLifecycle(JournalLifecycle lifecycle, const ChangeSource& source);
  // Writes into the slot that is not published. Returns the sequence number.
  template <typename Record>
  uint32_t Write(JournalRecord record, const Record& content) {
    bytes_.Clear();
    Encode(content, bytes_);
    return WriteSlot(record);
  }
  // Writes the encoded record in bytes_.
  uint32_t WriteSlot(JournalRecord record);
  void PublishWord(JournalRecord record, uint32_t sequence);
  template <typename Record>
  void Publish(JournalRecord record, const Record& content) {
    PublishWord(record, Write(record, content));
  }
  // Publishes the records that the lifecycle names.
  void FinishChange(const LifecycleRecord& changed);
  ClientStatesRef WriteClientStates(int64_t commit_number, absl::Span<const std::string> states,
                                    const std::string& reader_data);
  // Returns the numbers, with histories, of a state that replaces the state of `numbers_`. Histories that `numbers_`
  // has too stay where they are; others take places of the rings that it does not use, if there are enough.
  NumbersRecord WriteNumbers(const JournalEpoch& epoch, const JournalNumbers& numbers) const;
  void Mark(int64_t offset, int count) const { stores_.Publish(offset, MarkWord(decided_.commit_number, count)); }

  // Takes over a reader's content.
  absl::Status Load(const JournalReader& reader);

  absl::Status CheckUsable() const;
  absl::Status CheckClientStates(absl::Span<const std::string> states, const std::string& reader_data) const;
  absl::Status CheckScalings(absl::Span<const ScalingChange> scalings) const;
  absl::Status CheckAnswer(const AnsweredCommit& commit) const;
  // Returns the commit of the next Prepare.
  CommitKey NextKey() const;
  bool is_prepared() const { return prepared_ == NextKey(); }
  bool is_decided() const { return decided_ == NextKey(); }

  // Puts the changes into the numbers, which are not published yet.
  void Take(absl::Span<const ScalingChange> scalings);

  const JournalIdentity identity_;
  const JournalLayout layout_;
  const JournalShape shape_;
  const JournalStores stores_;
  const AmaxRings rings_;

  JournalBytes bytes_;  // of the record in progress
  std::array<uint32_t, kJournalRecords> sequences_ = {};
  JournalLifecycle lifecycle_ = JournalLifecycle::kCreating;
  // Content of a usable model. During a change: the old content, as far as it is known.
  JournalEpoch epoch_;
  NumbersRecord numbers_;
  CommitKey prepared_;
  CommitKey decided_;
  ClientStatesRef prepared_states_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_JOURNAL_JOURNAL_H_
