#include "client/internal/session.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/internal/commit_command.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
namespace {

constexpr absl::Duration kDetachTimeout = absl::Seconds(5);
// One record of the page is always free for the daemon to write.
constexpr int64_t kCommitsInFlight = wire::kCommitRecords - 1;
constexpr size_t kKeptAnswers = 64;

wire::WordsCounts Counts(const v1::ModelLayout& layout) {
  return {.slots = layout.slot_offsets_size(),
          .ranks = layout.ranks(),
          .gradient_slots = layout.gradient_slot_offsets_size()};
}

StepResult FromProto(const v1::CommitResult& result) {
  return {.commit_number = result.commit_number(),
          .version = result.version(),
          .skipped = result.skipped(),
          .gradient_norm = result.gradient_norm(),
          .non_finite_count = result.non_finite_count()};
}

StepResult FromRecord(const wire::CommitRecord& record) {
  return {.commit_number = record.commit_number,
          .version = record.version,
          .skipped = record.skipped != 0,
          .gradient_norm = record.gradient_norm,
          .non_finite_count = record.non_finite_count};
}

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kBoth:
      return "both";
  }
  return nullptr;
}

absl::Status CheckSize(absl::string_view memory, int64_t expected, int64_t got) {
  if (expected == got) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("session ", memory, ": ", expected, " bytes expected by the layout, got ", got));
}

template <typename Sizes>
std::vector<int64_t> ToVector(const Sizes& sizes) {
  return {sizes.begin(), sizes.end()};
}

// Where each of `sizes` begins when they lie one after the other.
std::vector<int64_t> Offsets(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> offsets(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), int64_t{0});
  return offsets;
}

}  // namespace

absl::StatusOr<Session::Memory> Session::MapMemory(const Parts& parts, const LayoutView& layout,
                                                   int64_t scratch_bytes) {
  const v1::ModelLayout& proto = layout.proto();
  const wire::HandoffMemory& sizes = parts.memory.sizes;
  const auto words_bytes = static_cast<int64_t>(wire::Words::SizeBytes(Counts(proto)));
  RETURN_IF_ERROR(CheckSize("planes", proto.arena_bytes(), sizes.planes_bytes));
  // A landing area may be there without being used.
  const bool has_landing = parts.started.client_lands_own_gradients() || sizes.slots_bytes > proto.slots_bytes();
  const int64_t landing_bytes = has_landing ? proto.landing_bytes() : 0;
  RETURN_IF_ERROR(CheckSize("slots", proto.slots_bytes() + landing_bytes, sizes.slots_bytes));
  RETURN_IF_ERROR(CheckSize("words", words_bytes, sizes.words_bytes));
  Memory mapped;
  ASSIGN_OR_RETURN(mapped.words,
                   MappedMemory::Map("words", parts.memory.words, words_bytes, MappedMemory::Access::kReadWrite));
  ASSIGN_OR_RETURN(mapped.tensors,
                   parts.map_tensors(parts.started.gpu_uuid(),
                                     {.memory = &parts.memory,
                                      .words = &mapped.words,
                                      .scratch_bytes = scratch_bytes,
                                      .marks = proto.slot_offsets_size() + proto.gradient_slot_offsets_size()}));
  return mapped;
}

absl::StatusOr<std::shared_ptr<Session>> Session::Create(Parts parts) {
  parts.started.clear_spec();
  ASSIGN_OR_RETURN(LayoutView layout, LayoutView::Create(std::move(*parts.started.mutable_layout()), parts.spec.get(),
                                                         parts.started.group_rank()));
  parts.started.clear_layout();
  std::vector<GatherCopies> copies = AllGatherCopies(layout);
  const std::vector<int64_t> scratch = ScratchBytes(layout, copies);
  ASSIGN_OR_RETURN(Memory memory,
                   MapMemory(parts, layout, std::accumulate(scratch.begin(), scratch.end(), int64_t{0})));
  std::shared_ptr<Session> session(
      new Session(std::move(parts), std::move(layout), std::move(copies), std::move(memory)));
  ASSIGN_OR_RETURN(session->watch_, DaemonWatch::Start(&session->page_, session->companion_.daemon_pidfd(),
                                                       session->companion_.socket()));
  return session;
}

Session::Session(Parts parts, LayoutView layout, std::vector<GatherCopies> copies, Memory memory)
    : spec_(std::move(parts.spec)),
      rank_(parts.rank),
      prefetch_(parts.prefetch),
      started_(std::move(parts.started)),
      layout_(std::move(layout)),
      copies_(std::move(copies)),
      scratch_offsets_(Offsets(ScratchBytes(layout_, copies_))),
      companion_(std::move(parts.companion)),
      memory_(std::move(memory)),
      page_(wire::Words(memory_.words.data(), Counts(layout_.proto())), companion_.daemon_pidfd(),
            companion_.daemon_pid()),
      gather_slots_(ToVector(layout_.proto().slot_bytes()), layout_.RingSlots()),
      arrived_(layout_.proto().slot_bytes_size(), 0),
      pieces_may_arrive_(layout_.proto().slot_bytes_size(), false),
      stream_releases_(layout_.proto().slot_bytes_size()),
      gradient_slots_(ToVector(layout_.proto().gradient_slot_bytes())),
      given_back_by_(layout_.proto().gradient_slot_bytes_size()),
      pushed_(layout_.proto().units_size(), false),
      last_commit_(started_.commit_number()),
      stream_(std::move(parts.stream)) {}

Session::~Session() { Detach().IgnoreError(); }

// --- Gathers

absl::Status Session::CheckPhase(int unit, Phase phase) const {
  if (PhaseName(phase) == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("gather ", layout_.UnitName(unit),
                                                   ": phase forward, backward or both expected, got ",
                                                   static_cast<int>(phase)));
  }
  if (layout_.ResidentSlot(unit).has_value() && phase != Phase::kBoth) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gather ", layout_.UnitName(unit), ": phase both expected (the unit stays gathered), got ", PhaseName(phase)));
  }
  const int64_t bytes = layout_.SlotBytes(unit, phase);
  if (layout_.ResidentSlot(unit).has_value() || gather_slots_.Fits(bytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("gather ", layout_.UnitName(unit), ": phase ", PhaseName(phase), " takes ", bytes,
                   " bytes, more than any gather slot; reshard_after_forward = false gives the "
                   "unit a slot of its own"));
}

absl::StatusOr<int> Session::ChooseSlot(const PlannedGather& gather) const {
  if (const std::optional<int> own = layout_.ResidentSlot(gather.unit); own.has_value()) {
    if (!gather_slots_.held(*own)) return *own;
    return absl::ResourceExhaustedError(absl::StrCat("gather ", layout_.UnitName(gather.unit),
                                                     ": the unit's own slot expected to be free, it is still held"));
  }
  const std::optional<int> slot = gather_slots_.FindFree(layout_.SlotBytes(gather.unit, gather.phase));
  if (slot.has_value()) return *slot;
  return absl::ResourceExhaustedError(absl::StrCat(
      "gather ", layout_.UnitName(gather.unit), ": a free gather slot expected, all that fit are held by handles of ",
      UnitNames(gather_slots_.Holders())));
}

std::optional<int> Session::ChooseSlotAhead(const PlannedGather& gather) const {
  const std::optional<int> own = layout_.ResidentSlot(gather.unit);
  if (!own.has_value()) return gather_slots_.FindFreeOfClass(layout_.SlotBytes(gather.unit, gather.phase));
  return gather_slots_.held(*own) ? std::nullopt : own;
}

absl::StatusOr<GatherTicket> Session::Issue(const PlannedGather& gather, int slot) {
  v1::Command command;
  command.mutable_gather()->set_unit(gather.unit);
  command.mutable_gather()->set_phase(static_cast<v1::Phase>(gather.phase));
  command.mutable_gather()->set_slot(slot);
  GatherTicket ticket{.unit = gather.unit, .phase = gather.phase, .slot = slot};
  ASSIGN_OR_RETURN(ticket.number, page_.Send(std::move(command)));
  if (last_commit_ > started_.commit_number()) ticket.commit_number = last_commit_;
  gather_slots_.Hold(slot, gather.unit);
  gathered_bytes_ += layout_.GatheredBytes(gather.unit, gather.phase);
  return ticket;
}

absl::StatusOr<GatherTicket> Session::TakeOrIssue(const PlannedGather& gather) {
  if (!(plan_.Expected(0) == gather)) DropAhead();
  if (!ahead_.empty()) {
    const GatherTicket ticket = ahead_.front();
    ahead_.pop_front();
    return ticket;
  }
  ASSIGN_OR_RETURN(const int slot, ChooseSlot(gather));
  return Issue(gather, slot);
}

void Session::IssueAhead() {
  while (const std::optional<PlannedGather> next = plan_.Expected(ahead_.size())) {
    const std::optional<int> slot = ChooseSlotAhead(*next);
    if (!slot.has_value()) return;
    // Fails only when the epoch has ended, which the trainer's next call says.
    absl::StatusOr<GatherTicket> ticket = Issue(*next, *slot);
    if (!ticket.ok()) return;
    ahead_.push_back(*ticket);
  }
}

void Session::DropAhead() {
  for (const GatherTicket& ticket : ahead_) Release(ticket);
  ahead_.clear();
}

absl::StatusOr<GatherTicket> Session::Gather(absl::string_view unit_name, Phase phase) {
  RETURN_IF_ERROR(page_.status());
  ASSIGN_OR_RETURN(const int unit, layout_.FindUnit(unit_name));
  RETURN_IF_ERROR(CheckPhase(unit, phase));
  const PlannedGather gather{unit, phase};
  ASSIGN_OR_RETURN(const GatherTicket ticket, TakeOrIssue(gather));
  plan_.Advance(gather);
  if (prefetch_) IssueAhead();
  return ticket;
}

uint8_t* Session::SlotMemory(int slot) const { return memory_.tensors->slots() + layout_.proto().slot_offsets(slot); }

absl::Status Session::LandOwnPieces(const GatherTicket& ticket, GpuStream stream) {
  byte_copies_.clear();
  for (const PieceCopy& piece : CopiesOf(ticket).own_pieces()) {
    byte_copies_.push_back(
        {memory_.tensors->planes() + piece.source, SlotMemory(ticket.slot) + piece.target, piece.bytes});
  }
  return memory_.tensors->Copy(byte_copies_, stream);
}

absl::Status Session::AssembleScales(const GatherTicket& ticket, GpuStream stream) {
  if (memory_.tensors->scratch() == nullptr) return absl::OkStatus();
  uint8_t* const scratch = memory_.tensors->scratch() + scratch_offsets_[ticket.slot];
  byte_copies_.clear();
  for (const PieceCopy& part : CopiesOf(ticket).scales()) {
    byte_copies_.push_back({SlotMemory(ticket.slot) + part.source, scratch + part.target, part.bytes});
  }
  return memory_.tensors->Copy(byte_copies_, stream);
}

void Session::MarkArrived(const GatherTicket& ticket) {
  pieces_may_arrive_[ticket.slot] = false;
  arrived_[ticket.slot] = ticket.number;
}

absl::Status Session::AwaitGather(const GatherTicket& ticket) {
  const bool lands = started_.client_lands_own_pieces();
  if (lands && ticket.commit_number > 0) RETURN_IF_ERROR(page_.AwaitAnswer(ticket.commit_number));
  RETURN_IF_ERROR(page_.status());
  if (ReadsArena()) return absl::OkStatus();
  const GpuStream stream = memory_.tensors->own_stream();
  word_operations_.clear();
  AwaitReadersOn(ticket.slot, stream);
  RETURN_IF_ERROR(EnqueueWords(stream));
  // Beside the daemon's copies, unless pieces of the gather before may still arrive and overwrite these.
  const bool lands_first = lands && LandsFirst(ticket);
  if (lands_first) RETURN_IF_ERROR(LandOwnPieces(ticket, stream));
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    if (lands && rank == started_.group_rank()) continue;
    RETURN_IF_ERROR(page_.Await(page_.words().ready(ticket.slot, rank), ticket.number));
  }
  if (lands && !lands_first) RETURN_IF_ERROR(LandOwnPieces(ticket, stream));
  RETURN_IF_ERROR(AssembleScales(ticket, stream));
  RETURN_IF_ERROR(memory_.tensors->Synchronize(stream));
  MarkArrived(ticket);
  return absl::OkStatus();
}

bool Session::GatherReady(const GatherTicket& ticket) const {
  if (!page_.status().ok()) return true;
  const bool lands = started_.client_lands_own_pieces();
  if (lands && ticket.commit_number > 0 && !page_.Answered(ticket.commit_number)) return false;
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    if (lands && rank == started_.group_rank()) continue;
    if (!page_.Reached(page_.words().ready(ticket.slot, rank), ticket.number)) return false;
  }
  return true;
}

void Session::MarkReleased(const GatherTicket& ticket) {
  if (arrived_[ticket.slot] != ticket.number) pieces_may_arrive_[ticket.slot] = true;
  gather_slots_.Release(ticket.slot);
}

void Session::Release(const GatherTicket& ticket) {
  const std::optional<StreamRelease>& before = stream_releases_[ticket.slot];
  if (before.has_value() && !page_.Reached(page_.words().released(ticket.slot), before->number)) {
    // The word of an earlier gather is still to be written, by a stream that may be reading the slot until then.
    ReleaseOn(ticket, before->stream).IgnoreError();
    return;
  }
  MarkReleased(ticket);
  page_.words().released(ticket.slot).value.store(static_cast<uint32_t>(ticket.number), std::memory_order_release);
  page_.words().Ring();
}

PlaneBytes Session::Bytes(const GatherTicket& ticket, int parameter, Plane plane) const {
  const uint8_t* memory = ReadsArena() ? memory_.tensors->planes() : SlotMemory(ticket.slot);
  const PlanePlace place = ReadsArena() ? layout_.InArena(ticket.unit, parameter, plane)
                                        : layout_.InSlot(ticket.unit, parameter, plane, ticket.phase);
  PlaneBytes bytes;
  bytes.data = absl::MakeConstSpan(memory + place.data.offset, place.data.bytes);
  if (place.amax.bytes > 0) bytes.amax = absl::MakeConstSpan(memory + place.amax.offset, place.amax.bytes);
  if (const uint8_t* scratch = memory_.tensors->scratch(); scratch != nullptr && !ReadsArena()) {
    if (const std::optional<ByteRange> whole = CopiesOf(ticket).AssembledScales(parameter, plane)) {
      bytes.scales = {absl::MakeConstSpan(scratch + scratch_offsets_[ticket.slot] + whole->offset, whole->bytes)};
      return bytes;
    }
  }
  for (const ByteRange& range : place.scales)
    bytes.scales.push_back(absl::MakeConstSpan(memory + range.offset, range.bytes));
  return bytes;
}

// --- Gradients

absl::StatusOr<GradientTicket> Session::ChooseGradientSlot(absl::string_view unit_name) const {
  RETURN_IF_ERROR(page_.status());
  ASSIGN_OR_RETURN(const int unit, layout_.FindUnit(unit_name));
  const std::optional<int> slot = gradient_slots_.FindOldest(layout_.proto().units(unit).gradient_bytes());
  if (slot.has_value()) return GradientTicket{.unit = unit, .slot = *slot};
  return absl::ResourceExhaustedError(
      absl::StrCat("gradients ", unit_name, ": a free gradient slot expected, all that fit are held, unpushed, for ",
                   UnitNames(gradient_slots_.Holders())));
}

absl::Status Session::AwaitGivenBack(const GradientTicket& ticket, GpuStream stream) {
  const Worker before = std::exchange(given_back_by_[ticket.slot], std::nullopt);
  if (!before.has_value() || *before == stream) return absl::OkStatus();
  return memory_.tensors->AwaitMark(MarkOfGradients(ticket.slot), stream);
}

absl::Status Session::ZeroGradients(const GradientTicket& ticket, GpuStream stream) {
  RETURN_IF_ERROR(AwaitGivenBack(ticket, stream));
  return memory_.tensors->Zero(memory_.tensors->slots() + layout_.proto().gradient_slot_offsets(ticket.slot),
                               layout_.proto().units(ticket.unit).gradient_bytes(), stream);
}

absl::StatusOr<GradientTicket> Session::TakeGradients(absl::string_view unit) {
  ASSIGN_OR_RETURN(const GradientTicket ticket, ChooseGradientSlot(unit));
  if (const int64_t push = gradient_slots_.last_push(ticket.slot); push > 0) {
    RETURN_IF_ERROR(page_.Await(page_.words().drained(ticket.slot), push));
  }
  RETURN_IF_ERROR(ZeroGradients(ticket, memory_.tensors->own_stream()));
  RETURN_IF_ERROR(memory_.tensors->Synchronize(memory_.tensors->own_stream()));
  gradient_slots_.Hold(ticket.slot, ticket.unit);
  return ticket;
}

GradientView Session::Gradient(const GradientTicket& ticket, int parameter) const {
  GradientView view;
  view.rows = layout_.Rows(ticket.unit, parameter);
  view.columns = layout_.Columns(ticket.unit, parameter);
  view.type = spec_->units[ticket.unit].parameters[parameter].gradient_type;
  view.gpu = gpu();
  const int64_t offset = layout_.proto().gradient_slot_offsets(ticket.slot) +
                         layout_.proto().units(ticket.unit).parameters(parameter).gradient_offset();
  view.data = absl::MakeSpan(memory_.tensors->slots() + offset, view.rows * view.columns * GradientBytes(view.type));
  return view;
}

absl::Status Session::LandOwnGradients(const GradientTicket& ticket, absl::Span<const int> absent_parameters,
                                       Worker worker) {
  // The last commit reads what landed before it.
  word_operations_.clear();
  if (last_commit_ > started_.commit_number()) {
    if (!worker.has_value()) RETURN_IF_ERROR(page_.AwaitAnswer(last_commit_));
    AwaitWordOn(page_.words().committed(), last_commit_);
  }
  const GpuStream stream = worker.value_or(memory_.tensors->own_stream());
  RETURN_IF_ERROR(EnqueueWords(stream));
  byte_copies_.clear();
  for (const PieceCopy& piece : layout_.OwnGradients(ticket.unit, ticket.slot, absent_parameters)) {
    byte_copies_.push_back(
        {memory_.tensors->slots() + piece.source, memory_.tensors->slots() + piece.target, piece.bytes});
  }
  RETURN_IF_ERROR(memory_.tensors->Copy(byte_copies_, stream));
  return worker.has_value() ? absl::OkStatus() : memory_.tensors->Synchronize(stream);
}

absl::Status Session::Push(const GradientTicket& ticket, absl::Span<const int> absent_parameters, Worker worker) {
  const bool lands = started_.client_lands_own_gradients() && !pushed_[ticket.unit];
  absl::Status written = lands ? LandOwnGradients(ticket, absent_parameters, worker) : absl::OkStatus();
  v1::Command command;
  command.mutable_push()->set_own_slices_landed(lands);
  command.mutable_push()->set_unit(ticket.unit);
  command.mutable_push()->set_slot(ticket.slot);
  for (int parameter : absent_parameters) command.mutable_push()->add_absent_parameters(parameter);
  // Filled before the command: the daemon may look at the word as soon as it has read the command.
  wire::Word& filled = page_.words().filled(ticket.slot);
  const auto next_number = static_cast<uint32_t>(page_.next_number());
  if (worker.has_value() && written.ok()) {
    const WordOperation write{.kind = WordOperation::Kind::kWrite, .word = &filled, .value = next_number};
    written = memory_.tensors->EnqueueWords({write}, *worker);
  } else if (written.ok()) {
    filled.value.store(next_number, std::memory_order_release);
  }
  const absl::StatusOr<int64_t> number = written.ok() ? page_.Send(std::move(command)) : written;
  if (!number.ok()) {
    gradient_slots_.Release(ticket.slot);
    return number.status();
  }
  gradient_slots_.Push(ticket.slot, *number);
  pushed_[ticket.unit] = true;
  return absl::OkStatus();
}

void Session::GiveBack(const GradientTicket& ticket, Worker worker) {
  // Without a mark the stream is lost, and what it had to write with it.
  if (worker.has_value() && memory_.tensors->SetMark(MarkOfGradients(ticket.slot), *worker).ok()) {
    given_back_by_[ticket.slot] = worker;
  }
  gradient_slots_.Release(ticket.slot);
}

// --- Commits

std::string Session::UnitNames(const std::vector<int>& units) const {
  return absl::StrJoin(units, ", ",
                       [this](std::string* out, int unit) { absl::StrAppend(out, layout_.UnitName(unit)); });
}

absl::Status Session::CheckNothingHeld() const {
  if (const std::vector<int> units = gather_slots_.Holders(); !units.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("commit: every gathered unit released expected, still held: ", UnitNames(units)));
  }
  if (const std::vector<int> units = gradient_slots_.Holders(); !units.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("commit: every gradient slot pushed or given back expected, still held: ", UnitNames(units)));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Session::ChooseCommitNumber(const CommitOptions& options) const {
  const int64_t number = options.commit_number.value_or(last_commit_ + 1);
  if (number == last_commit_ + 1 || (number == last_commit_ && number > 0)) return number;
  return absl::FailedPreconditionError(
      absl::StrCat("commit: number ", last_commit_ + 1, " (or ", last_commit_, " again) expected, got ", number));
}

absl::StatusOr<int64_t> Session::Commit(const CommitOptions& options) {
  RETURN_IF_ERROR(page_.status());
  DropAhead();
  RETURN_IF_ERROR(CheckNothingHeld());
  ASSIGN_OR_RETURN(const int64_t number, ChooseCommitNumber(options));
  const int group_count = std::max<int>(1, static_cast<int>(spec_->groups.size()));
  v1::Command command;
  ASSIGN_OR_RETURN(*command.mutable_commit(), MakeCommit(options, group_count, number));
  if (number - kCommitsInFlight > started_.commit_number()) RETURN_IF_ERROR(KeepAnswer(number - kCommitsInFlight));
  RETURN_IF_ERROR(page_.Send(std::move(command)).status());
  // A repeated number commits nothing.
  if (number != last_commit_) pushed_.assign(pushed_.size(), false);
  last_commit_ = number;
  plan_.EndStep();
  return number;
}

absl::Status Session::KeepAnswer(int64_t commit_number) {
  if (answers_.contains(commit_number)) return absl::OkStatus();
  RETURN_IF_ERROR(page_.AwaitAnswer(commit_number));
  const StepResult result = FromRecord(page_.words().commit_record(commit_number));
  if (result.commit_number != commit_number) {
    return absl::FailedPreconditionError(
        absl::StrCat("commit ", commit_number, ": its answer expected, got that of commit ", result.commit_number));
  }
  answers_.emplace(commit_number, result);
  if (answers_.size() > kKeptAnswers) answers_.erase(answers_.begin());
  return absl::OkStatus();
}

std::optional<StepResult> Session::last_result() const {
  if (!started_.has_last_commit()) return std::nullopt;
  return FromProto(started_.last_commit());
}

absl::StatusOr<StepResult> Session::AwaitCommit(int64_t commit_number) {
  if (commit_number == started_.commit_number() && started_.has_last_commit()) return FromProto(started_.last_commit());
  RETURN_IF_ERROR(KeepAnswer(commit_number));
  return answers_.at(commit_number);
}

bool Session::CommitReady(int64_t commit_number) const {
  return answers_.contains(commit_number) || page_.Answered(commit_number) || !page_.status().ok();
}

absl::Status Session::Detach() {
  watch_.reset();
  if (stream_ == nullptr) return absl::OkStatus();
  const absl::Time deadline = absl::Now() + kDetachTimeout;
  absl::Status closed;
  if (page_.status().ok()) closed = stream_->Detach(page_.next_number() - 1, deadline);
  closed.Update(stream_->Close(deadline));
  stream_.reset();
  page_.End(absl::CancelledError("the trainer has detached"));
  return closed;
}

}  // namespace paramshard::internal
