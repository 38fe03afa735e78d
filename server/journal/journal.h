// A model's journal: what the next server has to know when this one dies, in memory that outlives it.
#ifndef PARAMSHARD_SERVER_JOURNAL_JOURNAL_H_
#define PARAMSHARD_SERVER_JOURNAL_JOURNAL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/journal/journal_bytes.h"
#include "server/journal/journal_codec.h"
#include "server/journal/journal_content.h"
#include "server/journal/journal_layout.h"
#include "server/journal/journal_reader.h"
#include "server/journal/journal_stores.h"

namespace paramshard::server {

// Writes it. A call is some stores and a hash, and nothing that waits. Whatever store a process dies behind: a reader
// (recovery.h) finds what was before the call, or what is after it.
//
//   journal = Journal::Create(memory, identity)       says `creating`
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
// Not thread-safe, but for marks: each lane of a rank has a thread of its own at most. Errors are this program's own
// mistakes, but for client states that are too long: INVALID_ARGUMENT what cannot be, FAILED_PRECONDITION a call that
// is not the next one. Then nothing is written.
class Journal {
 public:
  // Bytes of memory that a model's journal takes. INVALID_ARGUMENT an identity that cannot be.
  static absl::StatusOr<int64_t> SizeOf(const JournalIdentity& identity);

  // Begins one in zeroed memory of just that size, aligned to 64 bytes, which outlives it. `limit` as in
  // journal_stores.h.
  static absl::StatusOr<std::unique_ptr<Journal>> Create(absl::Span<uint8_t> memory, const JournalIdentity& identity,
                                                         StoreLimit* limit = nullptr);

  // Goes on with one that another process has written, behind what is published. Nobody writes it any more. Errors of
  // JournalReader; DATA_LOSS one that was not begun. What is damaged of a model is written anew by SetUsable alone.
  static absl::StatusOr<std::unique_ptr<Journal>> Adopt(absl::Span<uint8_t> memory, StoreLimit* limit = nullptr);

  const JournalIdentity& identity() const { return identity_; }
  // Whether the model has been usable: the next server has something of it.
  bool is_made() const { return lifecycle_ != JournalLifecycle::kCreating; }

  // --- Lifecycle

  // The state is all there, and is this: after it was made, or changed. One store makes it the one that holds. Up to
  // that one the numbers of before stay whole where the new state has no client states, and its histories are those of
  // before or have one amax, as after an import: one from files is made again over them.
  absl::Status SetUsable(const JournalEpoch& epoch, const JournalNumbers& numbers);
  // Before the first byte of the state is replaced. A change that fails stays one.
  absl::Status BeginChange(const ChangeSource& source);

  // --- Commits of a usable model

  // Of a number that no epoch of the history had. The history's id is node 0's from the first one on.
  absl::Status BeginEpoch(int64_t epoch, const HistoryId& history);
  // The same where a history may begin with it, at the commit number `begin`.
  absl::Status BeginEpoch(int64_t epoch, const History& history, int64_t begin);
  // Amaxes that were settled outside of a commit, by scaling of the identity's book. None is prepared.
  absl::Status Settle(absl::Span<const ScalingChange> scalings);
  // The commit behind the last answered one.
  absl::Status Prepare(const PreparedCommit& commit);
  // The prepared commit was given up: no daemon applies it.
  absl::Status Withdraw();
  absl::Status Decide(const DecidedCommit& commit);
  // Marks mean nothing from then on.
  absl::Status Answer(const AnsweredCommit& commit);

  // The number of the commit that was decided last, here or before the journal was adopted.
  int64_t decided_commit() const { return decided_.commit_number; }

  // --- Marks of the commit that was decided. `rank` counts from this daemon's first

  // `count` of the lane's bands are begun, or done and their bytes in memory. Without bands the whole step is the one
  // band of lane 0.
  void MarkBegun(int rank, int lane, int count) { Mark(BegunMark(layout_, rank, lane), count); }
  void MarkDone(int rank, int lane, int count) { Mark(DoneMark(layout_, rank, lane), count); }
  // For a device that writes the words itself, in stores of 8 bytes: MarkWord(commit number, count).
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
  void WriteHistory(size_t scaling, const JournalScaling::History& history, NumbersRecord& record) const;
  // Whether that is the one that `numbers_` has.
  bool HasHistory(size_t scaling, const JournalScaling::History& history) const;
  void WriteLifecycle(JournalLifecycle lifecycle, const ChangeSource& source);
  // Into the slot that is not published. Returns its number.
  template <typename Record>
  uint32_t Write(JournalRecord record, const Record& content) {
    bytes_.Clear();
    Encode(content, bytes_);
    return WriteSlot(record);
  }
  // What the encoder has put into bytes_.
  uint32_t WriteSlot(JournalRecord record);
  void PublishWord(JournalRecord record, uint32_t sequence);
  template <typename Record>
  void Publish(JournalRecord record, const Record& content) {
    PublishWord(record, Write(record, content));
  }
  // What the lifecycle names is published.
  void FinishChange(const LifecycleRecord& changed);
  ClientStatesRef WriteClientStates(int64_t commit_number, absl::Span<const std::string> states);
  // The numbers of a state that replaces the one of `numbers_`, with histories: those that `numbers_` has too stay
  // where they are, others take places of rings that it does not have as far as there are.
  NumbersRecord WriteNumbers(const JournalEpoch& epoch, const JournalNumbers& numbers) const;
  void Mark(int64_t offset, int count) const { stores_.Publish(offset, MarkWord(decided_.commit_number, count)); }

  // Takes over what a reader has found.
  absl::Status GoOn(const JournalReader& reader);

  absl::Status CheckUsable() const;
  absl::Status CheckClientStates(absl::Span<const std::string> states) const;
  absl::Status CheckScalings(absl::Span<const ScalingChange> scalings) const;
  absl::Status CheckAnswer(const AnsweredCommit& commit) const;
  // The commit that the next Prepare is of.
  CommitKey NextKey() const;
  bool is_prepared() const { return prepared_ == NextKey(); }
  bool is_decided() const { return decided_ == NextKey(); }

  // Into the numbers, which are not published yet.
  void Take(absl::Span<const ScalingChange> scalings);
  // One more value in a history, which begins anew or not.
  void AppendAmax(size_t scaling, float amax, bool begins);
  // Where the value of that age lies in the ring.
  int64_t PlaceOf(size_t scaling, const RingWindow& window, int64_t age) const;
  float RingValue(size_t scaling, int64_t place) const;
  void SetRingValue(size_t scaling, int64_t place, float value) const;
  int64_t RingOffset(size_t scaling, int64_t place) const {
    return layout_.rings + (ring_begin_[scaling] + place) * static_cast<int64_t>(sizeof(float));
  }

  const JournalIdentity identity_;
  const JournalLayout layout_;
  const JournalShape shape_;
  const JournalStores stores_;
  std::vector<int64_t> ring_begin_;  // of each scaling, in values

  JournalBytes bytes_;  // of the record that is written
  std::array<uint32_t, kJournalRecords> sequences_ = {};
  JournalLifecycle lifecycle_ = JournalLifecycle::kCreating;
  // Those of a usable model. Of one that is changed the numbers of before, as far as they are known.
  JournalEpoch epoch_;
  NumbersRecord numbers_;
  CommitKey prepared_;
  CommitKey decided_;
  ClientStatesRef prepared_states_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_JOURNAL_JOURNAL_H_
