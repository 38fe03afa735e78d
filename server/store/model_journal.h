// What a model writes into its journal, in the model's own terms.
#ifndef PARAMSHARD_SERVER_STORE_MODEL_JOURNAL_H_
#define PARAMSHARD_SERVER_STORE_MODEL_JOURNAL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "paramshard/v1/trainer.pb.h"
#include "proto/model/layout.h"
#include "proto/model/model_spec.h"
#include "server/collective/topology.h"
#include "server/device/compute_device.h"
#include "server/device/kept_memory.h"
#include "server/journal/journal.h"
#include "server/store/commit_under_way.h"
#include "server/store/scaling_book.h"
#include "server/store/shard.h"
#include "server/terms/commit_log.h"
#include "server/terms/history.h"

namespace paramshard::server {

// The state that the journal's numbers are of. Ranks are the daemon's own, in order.
struct JournaledState {
  absl::Span<const std::unique_ptr<Shard>> shards;
  ScalingBook* book = nullptr;
};

// As Journal: not thread-safe, but for marks; its calls come in its order. Errors of the journal are this program's own
// mistakes.
class ModelJournal {
 public:
  // What does not change while the model lives.
  static JournalIdentity Describe(const ModelSpec& spec, const Layout& layout, const Topology& topology,
                                  const MovePolicy& moves);

  // Begins one, as the first piece of `memory`, which outlives it as the devices do, of which `device` is one. Errors
  // of KeptMemory::HostPiece and of ComputeDevice::OpenHostMemory.
  static absl::StatusOr<std::unique_ptr<ModelJournal>> Create(KeptMemory& memory, const JournalIdentity& identity,
                                                              ComputeDevice& device);
  // Goes on with the one that lies in an adopted piece. FAILED_PRECONDITION where the model would not be the same
  // one here, naming the first difference: nothing is changed, and another server may go on.
  static absl::StatusOr<std::unique_ptr<ModelJournal>> Adopt(const Memory& piece, const JournalIdentity& identity,
                                                             ComputeDevice& device);

  // Tests let answers fail: its error is that of the journal.
  void BeforeAnswer(std::function<absl::Status()> hook) { before_answer_ = std::move(hook); }

  // As Journal::is_made.
  bool is_made() const { return journal_->is_made(); }
  // The state is all there, and is this.
  absl::Status SetUsable(const JournalEpoch& epoch, const CommitLog::State& commits, const JournaledState& state);
  absl::Status BeginChange(const ChangeSource& source) { return journal_->BeginChange(source); }

  absl::Status BeginEpoch(int64_t epoch, const History& history, int64_t history_begin) {
    return journal_->BeginEpoch(epoch, history, history_begin);
  }
  // The daemons have settled amaxes at the start of an epoch.
  absl::Status Settle(const JournaledState& state) { return journal_->Settle(state.book->TakeChanges()); }
  // Before the vote: what the step will be made of, and what the trainers sent with it.
  absl::Status Prepare(const v1::Commit& commit, int ranks, const std::vector<std::string>& client_states,
                       const JournaledState& state);
  // The vote came to nothing.
  absl::Status Withdraw() { return journal_->Withdraw(); }
  absl::Status Decide(int64_t commit_number, const Decided& decided);
  // What marks the bands of the decided commit's step. Thread-safe.
  StepProgress Marks(int rank) const;
  // All ranks are through with it.
  absl::Status Answer(const CommitAnswer& answer, int64_t skipped, const JournaledState& state);

 private:
  ModelJournal(const Memory& piece, std::unique_ptr<Journal> journal) : piece_(piece), journal_(std::move(journal)) {}
  absl::Status OpenFor(ComputeDevice& device);
  std::vector<int64_t> Steps(const JournaledState& state) const;
  static std::vector<int64_t> Positions(const JournaledState& state);

  const Memory& piece_;
  const std::unique_ptr<Journal> journal_;
  std::unique_ptr<Memory::Owner> leave_;  // of the devices to write marks
  std::function<absl::Status()> before_answer_ = [] { return absl::OkStatus(); };
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STORE_MODEL_JOURNAL_H_
