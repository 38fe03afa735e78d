// A session's gathers: choice of slots, arrival of pieces, and release.
#ifndef PARAMSHARD_CLIENT_INTERNAL_GATHERS_H_
#define PARAMSHARD_CLIENT_INTERNAL_GATHERS_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/internal/attachment.h"
#include "client/internal/commits.h"
#include "client/internal/prefetch_plan.h"
#include "client/internal/slots.h"
#include "common/model/gather_copies.h"
#include "common/model/phase.h"

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

// The bytes of one gathered plane. The scales' parts, in order, are the compact scales of the whole
// matrix.
struct PlaneBytes {
  absl::Span<const uint8_t> data;
  std::vector<absl::Span<const uint8_t>> scales;
  absl::Span<const uint8_t> amax;
};

// Streams that may wait for a gather beside the one that awaits it first.
enum class Followers : uint8_t { kAny, kNone };

// See Model and GatheredUnit for the errors. Used by one thread at a time.
//
// Host and streams may take turns: work on a slot is ordered as the calls are. A unit that the host has awaited is
// ready for every stream. A unit that the host releases is free after the trainer's work so far on the default stream.
class Gathers {
 public:
  // `commits` outlives it. With `prefetch` gathers are issued ahead in the order of the first step.
  Gathers(const Attachment& attached, UnitGatherCopies copies, const Commits* commits, bool prefetch);

  absl::StatusOr<GatherTicket> Gather(absl::string_view unit, Phase phase);
  // Returns the status that Gather would have now, and sends nothing.
  absl::Status CanGather(absl::string_view unit, Phase phase) const;
  // Returns the slots, ascending, that fit such a gather.
  absl::StatusOr<std::vector<int>> SlotsOf(absl::string_view unit, Phase phase) const;

  // Waits for the pieces of all ranks in the slot, and copies this rank's own where that is the client's task.
  absl::Status Await(const GatherTicket& ticket, Worker worker = {}, Followers followers = Followers::kAny);
  // Lets another stream wait for a gather that was awaited with Followers::kAny.
  absl::Status Follow(const GatherTicket& ticket, GpuStream stream);
  // Waits until the host may read a gather that a stream awaits.
  absl::Status Synchronize(GpuStream stream);
  bool IsReady(const GatherTicket& ticket) const;
  // Requires a successful Await, and a plane that the phase brings.
  PlaneBytes Bytes(const GatherTicket& ticket, int parameter, Plane plane) const;

  void Release(const GatherTicket& ticket);
  // The slot counts as free on return. When the stream refuses the work, it is lost, and its readers with it.
  absl::Status ReleaseOn(const GatherTicket& ticket, GpuStream stream);

  // Releases the gathers that were issued ahead.
  void DropAhead();
  // FAILED_PRECONDITION naming the units that are still held.
  absl::Status CheckNoneHeld() const;
  // Returns true if the trainer holds a unit; units that are only gathered ahead do not count.
  bool HasHandles() const;
  // A commit was sent: the gathers since the last commit are the plan.
  void EndStep() { plan_.EndStep(); }
  // A discard was sent: the step begins anew.
  void RestartStep() { plan_.RestartStep(); }

  // Bytes that all gathers so far bring.
  int64_t gathered_bytes() const { return gathered_bytes_; }

 private:
  // A release that some stream carries out.
  struct StreamRelease {
    GpuStream stream;
    int64_t number;
  };

  absl::StatusOr<PlannedGather> Find(absl::string_view unit, Phase phase) const;
  // Chooses among `slots`, as Gather does.
  absl::StatusOr<int> ChooseSlot(const PlannedGather& gather, const GatherSlots& slots) const;
  absl::Status NoSlotIsFree(const PlannedGather& gather, const GatherSlots& slots) const;
  std::optional<int> ChooseSlotAhead(const PlannedGather& gather) const;
  absl::StatusOr<GatherTicket> Issue(const PlannedGather& gather, int slot);
  absl::StatusOr<GatherTicket> TakeOrIssue(const PlannedGather& gather);
  void IssueAhead();

  // A group of one rank reads its planes where they are.
  bool ReadsArena() const { return Lands() && attached_.layout.ranks() == 1; }
  bool Lands() const { return attached_.started.client_lands_own_pieces(); }
  const GatherCopies& CopiesOf(const GatherTicket& ticket) const { return copies_[ticket.unit][ticket.phase]; }
  // Bytes of a slot that a gather needs.
  int64_t SlotBytes(const PlannedGather& gather) const {
    return attached_.layout.units()[gather.unit].slot_bytes[gather.phase];
  }
  std::optional<int> ResidentSlot(int unit) const { return attached_.layout.units()[unit].resident_slot; }
  uint8_t* SlotMemory(int slot) const;

  // The steps of Await, by the executor.
  absl::Status Arrive(const GatherTicket& ticket);
  void AwaitReaders(int slot);
  absl::Status AwaitPieces(const GatherTicket& ticket);
  absl::Status LandOwnPieces(const GatherTicket& ticket);
  // Puts scales of several ranks together in memory of a GPU. In host memory the handles do it when they are asked.
  absl::Status AssembleScales(const GatherTicket& ticket);

  // Writes the word `released` by the executor, behind the slot's readers.
  absl::Status ReleaseByExecutor(const GatherTicket& ticket);

  const Attachment attached_;
  const UnitGatherCopies copies_;
  const std::vector<int64_t> scratch_offsets_;  // by slot
  const Commits& commits_;
  const bool prefetch_;

  GatherSlots slots_;
  std::vector<int64_t> arrived_;                               // by slot: the last gather that was awaited
  std::vector<bool> pieces_may_arrive_;                        // by slot: released before all pieces had arrived
  std::vector<std::optional<StreamRelease>> stream_releases_;  // by slot: the last one
  PrefetchPlan plan_;
  std::deque<GatherTicket> ahead_;  // issued for what plan_ expects, in that order
  int64_t gathered_bytes_ = 0;
  std::vector<ByteCopy> byte_copies_;  // of the call under way
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_GATHERS_H_
