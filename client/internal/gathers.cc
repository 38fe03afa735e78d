#include "client/internal/gathers.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/plane_places.h"
#include "common/model/proto_enums.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
namespace {

// Returns where each of `sizes` begins when they lie one after the other.
std::vector<int64_t> Offsets(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> offsets(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), int64_t{0});
  return offsets;
}

}  // namespace

Gathers::Gathers(const Attachment& attached, UnitGatherCopies copies, const Commits* commits, bool prefetch)
    : attached_(attached),
      copies_(std::move(copies)),
      scratch_offsets_(Offsets(ScratchBytes(attached.layout, copies_))),
      commits_(*commits),
      prefetch_(prefetch),
      slots_(attached.layout.slot_bytes(), attached.layout.ring_slots()),
      arrived_(attached.layout.slot_bytes().size(), 0),
      pieces_may_arrive_(attached.layout.slot_bytes().size(), false),
      stream_releases_(attached.layout.slot_bytes().size()) {}

// --- Slots

absl::StatusOr<PlannedGather> Gathers::Find(absl::string_view unit_name, Phase phase) const {
  ASSIGN_OR_RETURN(const int unit, attached_.names.FindUnit(unit_name));
  const bool resident = ResidentSlot(unit).has_value();
  const auto refused = [&](auto... why) {
    return absl::InvalidArgumentError(absl::StrCat("gather ", unit_name, ": ", why...));
  };
  if (!IsPhase(phase)) {
    return refused("want phase forward, backward or both, got ", static_cast<int>(phase));
  }
  if (resident && phase != Phase::kBoth) {
    return refused("want phase both (the unit stays gathered), got ", PhaseName(phase));
  }
  const PlannedGather gather{unit, phase};
  const int64_t bytes = SlotBytes(gather);
  if (resident || slots_.Fits(bytes)) return gather;
  return refused("phase ", PhaseName(phase), " takes ", bytes,
                 " bytes, more than any gather slot; reshard_after_forward = false gives the unit a slot of its own");
}

absl::StatusOr<int> Gathers::ChooseSlot(const PlannedGather& gather, const GatherSlots& slots) const {
  if (const std::optional<int> own = ResidentSlot(gather.unit); own.has_value()) {
    if (!slots.held(*own)) return *own;
    return absl::ResourceExhaustedError(
        absl::StrCat("gather ", attached_.names.UnitName(gather.unit), ": the unit's own slot is still held"));
  }
  const std::optional<int> slot = slots.FindFree(SlotBytes(gather));
  if (slot.has_value()) return *slot;
  return NoSlotIsFree(gather, slots);
}

absl::Status Gathers::NoSlotIsFree(const PlannedGather& gather, const GatherSlots& slots) const {
  const std::vector<int> fitting = slots.Fitting(SlotBytes(gather));
  const bool large = static_cast<int>(fitting.size()) < attached_.layout.ring_slots();
  return absl::ResourceExhaustedError(absl::StrCat(
      "gather ", attached_.names.UnitName(gather.unit),
      ": no gather slot is free: ", large ? "the large slots that fit are" : "all that fit are", " held by handles of ",
      attached_.names.UnitNames(slots.HoldersOf(fitting)), "; release one, or raise ModelSpec.",
      large ? "large_gather_slots" : "gather_slots", " above ", fitting.size()));
}

std::optional<int> Gathers::ChooseSlotAhead(const PlannedGather& gather) const {
  const std::optional<int> own = ResidentSlot(gather.unit);
  if (!own.has_value()) return slots_.FindFreeOfClass(SlotBytes(gather));
  return slots_.held(*own) ? std::nullopt : own;
}

absl::Status Gathers::CanGather(absl::string_view unit, Phase phase) const {
  RETURN_IF_ERROR(attached_.page.status());
  ASSIGN_OR_RETURN(const PlannedGather gather, Find(unit, phase));
  if (!ahead_.empty() && plan_.Expected(0) == gather) return absl::OkStatus();
  GatherSlots slots = slots_;
  for (const GatherTicket& ticket : ahead_) slots.Release(ticket.slot);
  return ChooseSlot(gather, slots).status();
}

bool Gathers::HasHandles() const {
  GatherSlots slots = slots_;
  for (const GatherTicket& ticket : ahead_) slots.Release(ticket.slot);
  return !slots.Holders().empty();
}

absl::StatusOr<std::vector<int>> Gathers::SlotsOf(absl::string_view unit, Phase phase) const {
  ASSIGN_OR_RETURN(const PlannedGather gather, Find(unit, phase));
  if (const std::optional<int> own = ResidentSlot(gather.unit)) return std::vector<int>{*own};
  return slots_.Fitting(SlotBytes(gather));
}

// --- Issue

absl::StatusOr<GatherTicket> Gathers::Issue(const PlannedGather& gather, int slot) {
  v1::Command command;
  command.mutable_gather()->set_unit(gather.unit);
  command.mutable_gather()->set_phase(PhaseToProto(gather.phase));
  command.mutable_gather()->set_slot(slot);
  GatherTicket ticket{.unit = gather.unit, .phase = gather.phase, .slot = slot};
  ASSIGN_OR_RETURN(ticket.number, attached_.page.Send(std::move(command)));
  ticket.commit_number = commits_.last_in_epoch();
  slots_.Hold(slot, gather.unit);
  gathered_bytes_ += attached_.layout.GatheredBytes(gather.unit, gather.phase);
  return ticket;
}

absl::StatusOr<GatherTicket> Gathers::TakeOrIssue(const PlannedGather& gather) {
  if (!(plan_.Expected(0) == gather)) DropAhead();
  if (!ahead_.empty()) {
    const GatherTicket ticket = ahead_.front();
    ahead_.pop_front();
    return ticket;
  }
  ASSIGN_OR_RETURN(const int slot, ChooseSlot(gather, slots_));
  return Issue(gather, slot);
}

void Gathers::IssueAhead() {
  while (const std::optional<PlannedGather> next = plan_.Expected(ahead_.size())) {
    const std::optional<int> slot = ChooseSlotAhead(*next);
    if (!slot.has_value()) return;
    // Fails only when the epoch has ended, which the trainer's next call reports.
    absl::StatusOr<GatherTicket> ticket = Issue(*next, *slot);
    if (!ticket.ok()) return;
    ahead_.push_back(*ticket);
  }
}

void Gathers::DropAhead() {
  for (const GatherTicket& ticket : ahead_) Release(ticket);
  ahead_.clear();
}

absl::StatusOr<GatherTicket> Gathers::Gather(absl::string_view unit, Phase phase) {
  RETURN_IF_ERROR(attached_.page.status());
  ASSIGN_OR_RETURN(const PlannedGather gather, Find(unit, phase));
  ASSIGN_OR_RETURN(const GatherTicket ticket, TakeOrIssue(gather));
  plan_.Advance(gather);
  if (prefetch_) IssueAhead();
  return ticket;
}

// --- Arrival

uint8_t* Gathers::SlotMemory(int slot) const {
  return attached_.memory.slots() + attached_.layout.slot_offsets()[slot];
}

void Gathers::AwaitReaders(int slot) {
  const std::optional<StreamRelease>& last = stream_releases_[slot];
  if (!last.has_value()) return;
  attached_.executor.AwaitWriter(attached_.page.words().released(slot), last->number, last->stream);
}

absl::Status Gathers::AwaitPieces(const GatherTicket& ticket) {
  for (int rank = 0; rank < attached_.layout.ranks(); ++rank) {
    if (Lands() && rank == attached_.started.group_rank()) continue;
    RETURN_IF_ERROR(attached_.executor.Await(attached_.page.words().ready(ticket.slot, rank), ticket.number));
  }
  return absl::OkStatus();
}

absl::Status Gathers::LandOwnPieces(const GatherTicket& ticket) {
  byte_copies_.clear();
  for (const PieceCopy& piece : CopiesOf(ticket).own_pieces()) {
    byte_copies_.push_back(
        {attached_.memory.planes() + piece.source, SlotMemory(ticket.slot) + piece.target, piece.bytes});
  }
  return attached_.executor.Copy(byte_copies_);
}

absl::Status Gathers::AssembleScales(const GatherTicket& ticket) {
  if (attached_.memory.scratch() == nullptr) return absl::OkStatus();
  uint8_t* const scratch = attached_.memory.scratch() + scratch_offsets_[ticket.slot];
  byte_copies_.clear();
  for (const PieceCopy& part : CopiesOf(ticket).scales()) {
    byte_copies_.push_back({SlotMemory(ticket.slot) + part.source, scratch + part.target, part.bytes});
  }
  return attached_.executor.Copy(byte_copies_);
}

absl::Status Gathers::Arrive(const GatherTicket& ticket) {
  if (Lands() && ticket.commit_number > 0) RETURN_IF_ERROR(attached_.executor.AwaitAnswer(ticket.commit_number));
  if (ReadsArena()) return absl::OkStatus();
  AwaitReaders(ticket.slot);
  // Runs beside the daemon's copies, unless pieces of an earlier gather may still arrive and overwrite these.
  const bool lands_first = Lands() && !pieces_may_arrive_[ticket.slot];
  if (lands_first) RETURN_IF_ERROR(LandOwnPieces(ticket));
  RETURN_IF_ERROR(AwaitPieces(ticket));
  if (Lands() && !lands_first) RETURN_IF_ERROR(LandOwnPieces(ticket));
  return AssembleScales(ticket);
}

absl::Status Gathers::Await(const GatherTicket& ticket, Worker worker, Followers followers) {
  RETURN_IF_ERROR(attached_.page.status());
  RETURN_IF_ERROR(attached_.executor.Begin("wait", worker));
  RETURN_IF_ERROR(Arrive(ticket));
  RETURN_IF_ERROR(attached_.executor.Finish());
  if (worker.has_value() && followers == Followers::kAny) {
    RETURN_IF_ERROR(attached_.memory.SetMark(ticket.slot, *worker));
  }
  // Arrived, as the worker sees it: a release comes later on its stream too.
  pieces_may_arrive_[ticket.slot] = false;
  arrived_[ticket.slot] = ticket.number;
  return absl::OkStatus();
}

absl::Status Gathers::Follow(const GatherTicket& ticket, GpuStream stream) {
  RETURN_IF_ERROR(attached_.page.status());
  return attached_.memory.AwaitMark(ticket.slot, stream);
}

absl::Status Gathers::Synchronize(GpuStream stream) {
  RETURN_IF_ERROR(attached_.page.CheckProcess());
  return attached_.memory.Synchronize(stream);
}

bool Gathers::IsReady(const GatherTicket& ticket) const {
  const EpochPage& page = attached_.page;
  if (!page.status().ok()) return true;
  if (Lands() && ticket.commit_number > 0 && !page.Answered(ticket.commit_number)) return false;
  for (int rank = 0; rank < attached_.layout.ranks(); ++rank) {
    if (Lands() && rank == attached_.started.group_rank()) continue;
    if (!page.Reached(page.words().ready(ticket.slot, rank), ticket.number)) return false;
  }
  return true;
}

PlaneBytes Gathers::Bytes(const GatherTicket& ticket, int parameter, Plane plane) const {
  const Layout& layout = attached_.layout;
  const uint8_t* memory = ReadsArena() ? attached_.memory.planes() : SlotMemory(ticket.slot);
  const PlanePlace place = ReadsArena() ? PlaceInArena(layout, ticket.unit, parameter, plane)
                                        : PlaceInSlot(layout, ticket.unit, parameter, plane, ticket.phase);
  PlaneBytes bytes;
  bytes.data = absl::MakeConstSpan(memory + place.data.offset, place.data.bytes);
  if (place.amax.bytes > 0) bytes.amax = absl::MakeConstSpan(memory + place.amax.offset, place.amax.bytes);
  if (const uint8_t* scratch = attached_.memory.scratch(); scratch != nullptr && !ReadsArena()) {
    if (const std::optional<ByteRange> whole = CopiesOf(ticket).AssembledScales(parameter, plane)) {
      bytes.scales = {absl::MakeConstSpan(scratch + scratch_offsets_[ticket.slot] + whole->offset, whole->bytes)};
      return bytes;
    }
  }
  for (const ByteRange& range : place.scales)
    bytes.scales.push_back(absl::MakeConstSpan(memory + range.offset, range.bytes));
  return bytes;
}

// --- Release

absl::Status Gathers::ReleaseByExecutor(const GatherTicket& ticket) {
  wire::Word& released = attached_.page.words().released(ticket.slot);
  if (arrived_[ticket.slot] != ticket.number) pieces_may_arrive_[ticket.slot] = true;
  slots_.Release(ticket.slot);
  // A stream that still reads the slot may have an earlier gather's word left to write.
  AwaitReaders(ticket.slot);
  const bool later = attached_.executor.Write(released, ticket.number);
  const absl::Status written = attached_.executor.Flush();
  if (later && written.ok()) {
    stream_releases_[ticket.slot] = {attached_.executor.stream(), ticket.number};
    return written;
  }
  // The stream is lost, and its readers with it.
  if (!written.ok()) released.value.store(static_cast<uint32_t>(ticket.number), std::memory_order_release);
  attached_.page.words().Ring();
  return written;
}

void Gathers::Release(const GatherTicket& ticket) {
  if (!attached_.page.IsOwn()) return;
  // Never fails for the host.
  attached_.executor.BeginReturn("release", std::nullopt).IgnoreError();
  // A trainer that has never seen the unit has no work on it.
  const bool seen = arrived_[ticket.slot] == ticket.number;
  if (seen) attached_.executor.FollowTrainer().IgnoreError();
  ReleaseByExecutor(ticket).IgnoreError();
}

absl::Status Gathers::ReleaseOn(const GatherTicket& ticket, GpuStream stream) {
  RETURN_IF_ERROR(attached_.page.CheckProcess());
  const absl::Status begun = attached_.executor.BeginReturn("release", stream);
  if (!begun.ok()) Release(ticket);
  return begun.ok() ? ReleaseByExecutor(ticket) : begun;
}

absl::Status Gathers::CheckNoneHeld() const {
  const std::vector<int> units = slots_.Holders();
  if (units.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("commit: gathered units are still held: ", attached_.names.UnitNames(units)));
}

}  // namespace paramshard::internal
