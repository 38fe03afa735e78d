// One trainer's attachment to a model for one epoch: the state behind Model and its handles.
#ifndef PARAMSHARD_CLIENT_INTERNAL_SESSION_H_
#define PARAMSHARD_CLIENT_INTERNAL_SESSION_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/internal/companion.h"
#include "client/internal/daemon_watch.h"
#include "client/internal/epoch_page.h"
#include "client/internal/gather_copies.h"
#include "client/internal/layout_view.h"
#include "client/internal/mapped_memory.h"
#include "client/internal/prefetch_plan.h"
#include "client/internal/session_stream.h"
#include "client/internal/slots.h"
#include "client/internal/tensor_memory.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::internal {

// A gather that was issued, until it is released.
struct GatherTicket {
  int unit = 0;
  Phase phase = Phase::kForward;
  int slot = 0;
  int64_t number = 0;
  // The last commit issued before it in this epoch; 0 when there was none.
  int64_t commit_number = 0;
};

// A gradient slot that was handed out, until it is pushed or given back.
struct GradientTicket {
  int unit = 0;
  int slot = 0;
};

// Where a handle's work is done: by the host, or on a stream.
using Worker = std::optional<GpuStream>;

// The bytes of one gathered plane. The scales' parts, in order, are the compact scales of the whole
// matrix.
struct PlaneBytes {
  absl::Span<const uint8_t> data;
  std::vector<absl::Span<const uint8_t>> scales;
  absl::Span<const uint8_t> amax;
};

// Used by one thread at a time. Memory stays mapped for as long as the object lives, also after
// Detach. In a forked child every call answers FAILED_PRECONDITION and touches nothing of the parent's, and the object
// is never destroyed.
//
// In memory of a GPU the calls that end in On enqueue on a stream what their namesakes do at once, and wait for
// nothing. Both kinds may be mixed: what the host or another stream does next in a slot is ordered after what a stream
// was given to do there. Streams stay alive until they have done what they were given.
class Session {
 public:
  // What attaching brings.
  struct Parts {
    std::shared_ptr<const ModelSpec> spec;
    int rank = 0;
    bool prefetch = true;
    v1::EpochStarted started;
    Companion companion;
    SessionMemory memory;
    std::unique_ptr<SessionStream> stream;  // null: Detach has nobody to tell
    TensorMapper map_tensors = &MapTensors;
  };

  // Maps the memory and starts the watch. INTERNAL or FAILED_PRECONDITION when memory and layout do
  // not agree.
  static absl::StatusOr<std::shared_ptr<Session>> Create(Parts parts);
  ~Session();

  // --- Gathers. See Model and GatheredUnit for the errors.
  absl::StatusOr<GatherTicket> Gather(absl::string_view unit, Phase phase);
  // Waits for the pieces of all ranks, landing this rank's own where that is the client's part.
  absl::Status AwaitGather(const GatherTicket& ticket);
  absl::Status AwaitGatherOn(const GatherTicket& ticket, GpuStream stream);
  // One more stream, after AwaitGatherOn.
  absl::Status FollowGatherOn(const GatherTicket& ticket, GpuStream stream);
  // Waits until the host may read what a stream was to await.
  absl::Status Synchronize(GpuStream stream);
  bool GatherReady(const GatherTicket& ticket) const;
  void Release(const GatherTicket& ticket);
  absl::Status ReleaseOn(const GatherTicket& ticket, GpuStream stream);
  // Requires a successful AwaitGather or AwaitGatherOn, and a plane that the phase brings.
  PlaneBytes Bytes(const GatherTicket& ticket, int parameter, Plane plane) const;

  // --- Gradients. See Model and UnitGradients.
  absl::StatusOr<GradientTicket> TakeGradients(absl::string_view unit);
  absl::StatusOr<GradientTicket> TakeGradientsOn(absl::string_view unit, GpuStream stream, bool zeroed = true);
  GradientView Gradient(const GradientTicket& ticket, int parameter) const;
  // By the worker that filled the slot.
  absl::Status Push(const GradientTicket& ticket, absl::Span<const int> absent_parameters, Worker worker = {});
  void GiveBack(const GradientTicket& ticket, Worker worker = {});

  // --- Commits. See Model and PendingCommit.
  absl::StatusOr<int64_t> Commit(const CommitOptions& options);
  absl::StatusOr<StepResult> AwaitCommit(int64_t commit_number);
  bool CommitReady(int64_t commit_number) const;

  // The answer of the last commit before this epoch.
  std::optional<StepResult> last_result() const;

  absl::Status status() const { return page_.status(); }
  absl::Status CheckProcess() const { return page_.CheckProcess(); }
  // Idempotent; does not wait for commits. DEADLINE_EXCEEDED when the daemon does not let go.
  absl::Status Detach();

  const ModelSpec& spec() const { return *spec_; }
  const LayoutView& layout() const { return layout_; }
  // This process's index of the GPU whose memory the tensors are in; -1: host memory.
  int gpu() const { return memory_.tensors->gpu(); }
  const v1::EpochStarted& started() const { return started_; }
  int rank() const { return rank_; }
  int64_t gathered_bytes() const { return gathered_bytes_; }

 private:
  struct Memory {
    MappedMemory words;
    std::unique_ptr<TensorMemory> tensors;  // ends before the words
  };
  // Which gathers of a slot were released on a stream: the last one.
  struct StreamRelease {
    GpuStream stream;
    int64_t number;
  };

  Session(Parts parts, LayoutView layout, std::vector<GatherCopies> copies, Memory memory);
  static absl::StatusOr<Memory> MapMemory(const Parts& parts, const LayoutView& layout, int64_t scratch_bytes);

  absl::Status CheckPhase(int unit, Phase phase) const;
  absl::StatusOr<int> ChooseSlot(const PlannedGather& gather) const;
  std::optional<int> ChooseSlotAhead(const PlannedGather& gather) const;
  absl::StatusOr<GatherTicket> Issue(const PlannedGather& gather, int slot);
  absl::StatusOr<GatherTicket> TakeOrIssue(const PlannedGather& gather);
  void IssueAhead();
  void DropAhead();
  // A group of one rank reads its planes where they are.
  bool ReadsArena() const { return started_.client_lands_own_pieces() && layout_.ranks() == 1; }
  const GatherCopies& CopiesOf(const GatherTicket& ticket) const {
    return copies_[CopiesIndex(ticket.unit, ticket.phase)];
  }
  absl::Status LandOwnPieces(const GatherTicket& ticket, GpuStream stream);
  // In memory of a GPU; the host's handles put scales together when they are asked for.
  absl::Status AssembleScales(const GatherTicket& ticket, GpuStream stream);
  uint8_t* SlotMemory(int slot) const;
  // Whether pieces of an earlier gather may still arrive in the slot.
  bool LandsFirst(const GatherTicket& ticket) const { return !pieces_may_arrive_[ticket.slot]; }
  void MarkArrived(const GatherTicket& ticket);
  void MarkReleased(const GatherTicket& ticket);

  // --- Streams.
  absl::Status CheckHasStreams(absl::string_view call) const;
  // Appends a wait for a word, unless the word is there.
  void AwaitWordOn(wire::Word& word, int64_t number);
  // Appends a wait for a slot's last readers, when they are another stream's.
  void AwaitReadersOn(int slot, GpuStream stream);
  // Enqueues what was appended.
  absl::Status EnqueueWords(GpuStream stream);
  int MarkOfGradients(int slot) const { return layout_.proto().slot_offsets_size() + slot; }

  absl::StatusOr<GradientTicket> ChooseGradientSlot(absl::string_view unit) const;
  // Of a slot that was given back: orders the stream after the one that may still write it.
  absl::Status AwaitGivenBack(const GradientTicket& ticket, GpuStream stream);
  absl::Status ZeroGradients(const GradientTicket& ticket, GpuStream stream);
  // Keeps this rank's own gradients where the daemon looks for them at the commit.
  absl::Status LandOwnGradients(const GradientTicket& ticket, absl::Span<const int> absent_parameters, Worker worker);

  absl::Status CheckNothingHeld() const;
  absl::StatusOr<int64_t> ChooseCommitNumber(const CommitOptions& options) const;
  // Waits for a commit's answer and keeps it: its record is used again four commits later.
  absl::Status KeepAnswer(int64_t commit_number);
  std::string UnitNames(const std::vector<int>& units) const;

  // Constant after construction.
  const std::shared_ptr<const ModelSpec> spec_;
  const int rank_;
  const bool prefetch_;
  const v1::EpochStarted started_;  // without spec and layout
  const LayoutView layout_;         // of *spec_
  const std::vector<GatherCopies> copies_;
  const std::vector<int64_t> scratch_offsets_;  // by slot

  Companion companion_;
  const Memory memory_;
  EpochPage page_;

  GatherSlots gather_slots_;
  std::vector<int64_t> arrived_;         // by slot: the last gather that AwaitGather has succeeded for
  std::vector<bool> pieces_may_arrive_;  // by slot: it was released before all its pieces had arrived
  std::vector<std::optional<StreamRelease>> stream_releases_;  // by slot
  GradientSlots gradient_slots_;
  std::vector<Worker> given_back_by_;  // by gradient slot: the stream that may still write it, though it was not pushed
  std::vector<bool> pushed_;           // by unit: since the last commit
  PrefetchPlan plan_;
  std::deque<GatherTicket> ahead_;  // issued for what plan_ expects, in that order
  int64_t gathered_bytes_ = 0;
  int64_t last_commit_;                    // issued, or answered before the epoch
  std::map<int64_t, StepResult> answers_;  // of the newest commits that were waited for

  // Lists that are emptied before each use.
  std::vector<ByteCopy> byte_copies_;
  std::vector<WordOperation> word_operations_;

  std::unique_ptr<SessionStream> stream_;
  // Ends before what it watches.
  std::unique_ptr<DaemonWatch> watch_;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_SESSION_H_
