// A model's journal in the model's own terms.
#ifndef PARAMSHARD_SERVER_TRAINING_MODEL_JOURNAL_H_
#define PARAMSHARD_SERVER_TRAINING_MODEL_JOURNAL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/data_plane/topology.h"
#include "server/device/compute_device.h"
#include "server/device/kept_memory.h"
#include "server/journal/journal.h"
#include "server/state/committed_state.h"
#include "server/terms/commit_log.h"
#include "server/terms/history.h"
#include "server/training/current_commit.h"

namespace paramshard::server {

// Not thread-safe, except for marks; calls come in the order of Journal. Errors of the journal are bugs of this
// program.
class ModelJournal {
 public:
  // Returns what does not change while the model lives.
  static JournalIdentity Describe(const ModelSpec& spec, const Layout& layout, const Topology& topology,
                                  const MovePolicy& moves);

  // Begins a journal as the first piece of `memory`. `memory` and the devices, of which `device` is one, outlive it.
  // Errors of KeptMemory::HostPiece and of ComputeDevice::OpenHostMemory.
  static absl::StatusOr<std::unique_ptr<ModelJournal>> Create(KeptMemory& memory, const JournalIdentity& identity,
                                                              ComputeDevice& device);
  // Goes on with the journal in an adopted piece. FAILED_PRECONDITION naming the first difference if the model would
  // not be the same here: nothing is changed, and another server may go on.
  static absl::StatusOr<std::unique_ptr<ModelJournal>> Adopt(const Memory& piece, const JournalIdentity& identity,
                                                             ComputeDevice& device);

  // Sets a hook by which tests let answers fail: the journal returns its error.
  void BeforeAnswer(std::function<absl::Status()> hook) { before_answer_ = std::move(hook); }

  // Returns Journal::is_made.
  bool is_made() const { return journal_->is_made(); }
  // Records that the state is whole, and is this one.
  absl::Status SetUsable(const JournalEpoch& epoch, const CommitLog::State& commits, CommittedState& state);
  absl::Status BeginChange(const ChangeSource& source) { return journal_->BeginChange(source); }

  absl::Status BeginEpoch(int64_t epoch, const History& history, int64_t history_begin) {
    return journal_->BeginEpoch(epoch, history, history_begin);
  }
  // Records the amaxes that the daemons have settled at the start of an epoch.
  absl::Status Settle(CommittedState& state) { return journal_->Settle(state.book.TakeChanges()); }
  // Records, before the vote, the parameters of the step and what the trainers sent with it.
  absl::Status Prepare(const v1::Commit& commit, int ranks, const std::vector<std::string>& client_states,
                       CommittedState& state);
  // Records that the vote came to nothing.
  absl::Status Withdraw() { return journal_->Withdraw(); }
  absl::Status Decide(int64_t commit_number, const Decided& decided);
  // Returns what marks the bands of the decided commit's step. Thread-safe.
  StepProgress Marks(int rank) const;
  // Records the answer: all ranks have finished the commit.
  absl::Status Answer(const CommitAnswer& answer, int64_t skipped, CommittedState& state);

 private:
  ModelJournal(const Memory& piece, std::unique_ptr<Journal> journal) : piece_(piece), journal_(std::move(journal)) {}
  absl::Status OpenFor(ComputeDevice& device);
  std::vector<int64_t> Steps(const CommittedState& state) const;

  const Memory& piece_;
  const std::unique_ptr<Journal> journal_;
  std::unique_ptr<Memory::Owner> leave_;  // of the devices to write marks
  std::function<absl::Status()> before_answer_ = [] { return absl::OkStatus(); };
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_MODEL_JOURNAL_H_
