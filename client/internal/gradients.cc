#include "client/internal/gradients.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
Gradients::Gradients(const Attachment& attached, const Commits* commits)
    : attached_(attached),
      commits_(*commits),
      slots_(attached.layout.gradient_slot_bytes()),
      given_back_by_(attached.layout.gradient_slot_bytes().size()),
      step_pushes_(attached.layout.spec()),
      landings_(attached.layout.units().size()) {}

uint8_t* Gradients::SlotMemory(int slot) const {
  return attached_.memory.slots() + attached_.layout.gradient_slot_offsets()[slot];
}

absl::StatusOr<GradientTicket> Gradients::ChooseSlot(absl::string_view unit_name) const {
  ASSIGN_OR_RETURN(const int unit, attached_.names.FindUnit(unit_name));
  if (attached_.layout.units()[unit].gradient_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("gradients ", unit_name, ": all parameters of the unit are frozen"));
  }
  const std::optional<int> slot = slots_.FindOldest(attached_.layout.units()[unit].gradient_bytes);
  if (slot.has_value()) return GradientTicket{.unit = unit, .slot = *slot};
  return absl::ResourceExhaustedError(
      absl::StrCat("gradients ", unit_name, ": no gradient slot is free: all that fit are held, unpushed, for ",
                   attached_.names.UnitNames(slots_.Holders()), "; push one, or raise ModelSpec.gradient_slots"));
}

absl::Status Gradients::AwaitSlot(const GradientTicket& ticket) {
  if (const int64_t push = slots_.last_push(ticket.slot); push > 0) {
    RETURN_IF_ERROR(attached_.executor.Await(attached_.page.words().drained(ticket.slot), push));
  }
  return AwaitGivenBack(ticket);
}

absl::Status Gradients::AwaitGivenBack(const GradientTicket& ticket) {
  const Worker before = std::exchange(given_back_by_[ticket.slot], std::nullopt);
  const GpuStream stream = attached_.executor.stream();
  if (!before.has_value() || *before == stream) return absl::OkStatus();
  return attached_.memory.AwaitMark(MarkOf(ticket.slot), stream);
}

absl::StatusOr<GradientTicket> Gradients::Take(absl::string_view unit, Worker worker, bool zeroed) {
  RETURN_IF_ERROR(attached_.page.status());
  CommandExecutor& executor = attached_.executor;
  RETURN_IF_ERROR(executor.Begin("gradients", worker));
  ASSIGN_OR_RETURN(const GradientTicket ticket, ChooseSlot(unit));
  RETURN_IF_ERROR(AwaitSlot(ticket));
  if (zeroed) {
    const int64_t bytes = attached_.layout.units()[ticket.unit].gradient_bytes;
    RETURN_IF_ERROR(executor.Zero(SlotMemory(ticket.slot), bytes));
  }
  RETURN_IF_ERROR(executor.Finish());
  slots_.Hold(ticket.slot, ticket.unit);
  return ticket;
}

GradientView Gradients::View(const GradientTicket& ticket, int parameter) const {
  const ParameterSpec& spec = attached_.layout.spec().units[ticket.unit].parameters[parameter];
  GradientView view;
  view.parameter = spec.name;
  view.rows = spec.rows();
  view.columns = spec.columns();
  view.type = spec.gradient_type;
  view.gpu = attached_.memory.gpu();
  const int64_t offset = attached_.layout.units()[ticket.unit].parameters[parameter].gradient_offset;
  view.data =
      absl::MakeSpan(SlotMemory(ticket.slot) + offset, view.rows * view.columns * GradientBytes(spec.gradient_type));
  return view;
}

absl::Status Gradients::AwaitLandingArea(int unit) {
  // The last commit reads the rows that landed before it.
  if (const int64_t commit = commits_.last_in_epoch(); commit > 0) {
    RETURN_IF_ERROR(attached_.executor.AwaitAnswer(commit));
  }
  // Another stream may still write rows of a discarded push: not after their slot has drained.
  const Landing& last = landings_[unit];
  if (last.number == 0) return absl::OkStatus();
  return attached_.executor.Await(attached_.page.words().drained(last.slot), last.number);
}

absl::Status Gradients::Fill(const GradientTicket& ticket, absl::Span<const int> absent_parameters, bool landed,
                             Worker worker) {
  CommandExecutor& executor = attached_.executor;
  RETURN_IF_ERROR(executor.BeginReturn("push", worker));
  RETURN_IF_ERROR(executor.FollowTrainer());
  if (landed) {
    RETURN_IF_ERROR(AwaitLandingArea(ticket.unit));
    copies_.clear();
    uint8_t* const slots = attached_.memory.slots();
    for (const PieceCopy& piece :
         attached_.layout.LandingCopies(ticket.unit, attached_.started.group_rank(), ticket.slot, absent_parameters)) {
      copies_.push_back({slots + piece.source, slots + piece.target, piece.bytes});
    }
    RETURN_IF_ERROR(executor.Copy(copies_));
  }
  // Written before the command is sent: the daemon may read the word as soon as it has read the command.
  executor.Write(attached_.page.words().filled(ticket.slot), attached_.page.next_number());
  return executor.Flush();
}

absl::Status Gradients::CheckPush(const GradientTicket& ticket) const {
  RETURN_IF_ERROR(attached_.page.status());
  return step_pushes_.Check(ticket.unit);
}

bool Gradients::Lands(int unit) const {
  return attached_.started.client_lands_own_gradients() && !step_pushes_.Has(unit);
}

absl::Status Gradients::SendPush(const GradientTicket& ticket, absl::Span<const int> absent_parameters, bool landed) {
  v1::Command command;
  command.mutable_push()->set_own_slices_landed(landed);
  command.mutable_push()->set_unit(ticket.unit);
  command.mutable_push()->set_slot(ticket.slot);
  for (int parameter : absent_parameters) command.mutable_push()->add_absent_parameters(parameter);
  ASSIGN_OR_RETURN(const int64_t number, attached_.page.Send(std::move(command)));
  slots_.Push(ticket.slot, number);
  step_pushes_.Add(ticket.unit);
  has_pushed_ = true;
  if (landed) landings_[ticket.unit] = {.slot = ticket.slot, .number = number};
  return absl::OkStatus();
}

absl::Status Gradients::Push(const GradientTicket& ticket, absl::Span<const int> absent_parameters, Worker worker) {
  RETURN_IF_ERROR(attached_.page.CheckProcess());
  const bool lands = Lands(ticket.unit);
  absl::Status pushed = Fill(ticket, absent_parameters, lands, worker);
  if (pushed.ok()) pushed = SendPush(ticket, absent_parameters, lands);
  if (!pushed.ok()) slots_.Release(ticket.slot);
  return pushed;
}

// --- Values of the trainer

absl::StatusOr<std::vector<int>> Gradients::FindAbsent(int unit, absl::Span<const ConstGradient> values) const {
  const UnitSpec& spec = attached_.layout.spec().units[unit];
  if (values.size() != spec.parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat("push ", spec.name, ": want values of ", spec.parameters.size(),
                                                   " parameters, got ", values.size()));
  }
  std::vector<int> absent;
  for (int parameter = 0; parameter < static_cast<int>(values.size()); ++parameter) {
    const bool has_values = values[parameter].data != nullptr;
    if (!spec.parameters[parameter].trainable) {
      if (!has_values) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("push ", spec.name, ": ", spec.parameters[parameter].name, " is frozen: it has no gradient"));
    }
    if (!has_values) absent.push_back(parameter);
  }
  return absent;
}

absl::Status Gradients::CopyValues(const GradientTicket& ticket, absl::Span<const ConstGradient> values, bool landed) {
  const Layout& layout = attached_.layout;
  const std::vector<GradientSlice> own =
      landed ? layout.Slices(ticket.unit, attached_.started.group_rank()) : std::vector<GradientSlice>();
  uint8_t* const landing_area = attached_.memory.slots() + layout.slots_bytes();
  auto slice = own.begin();
  value_copies_.clear();
  for (int parameter = 0; parameter < static_cast<int>(values.size()); ++parameter) {
    const bool has_own = slice != own.end() && slice->parameter == parameter;
    const GradientSlice rows = has_own ? *slice++ : GradientSlice();
    const ConstGradient& source = values[parameter];
    if (source.data == nullptr) continue;
    const GradientView view = View(ticket, parameter);
    const auto append = [&](int64_t begin, int64_t end, uint8_t* target) {
      const uint8_t* const first = static_cast<const uint8_t*>(source.data) + begin * GradientBytes(source.type);
      if (begin < end) value_copies_.push_back({{first, source.type}, {target, view.type}, end - begin});
    };
    const int64_t element_bytes = GradientBytes(view.type);
    const int64_t offset = layout.units()[ticket.unit].parameters[parameter].gradient_offset;
    const int64_t own_begin = has_own ? (rows.slot_offset - offset) / element_bytes : 0;
    const int64_t own_end = own_begin + rows.elements;
    append(own_begin, own_end, landing_area + rows.landing_offset);
    append(0, own_begin, view.data.data());
    append(own_end, view.rows * view.columns, view.data.data() + own_end * element_bytes);
  }
  return attached_.executor.CopyGradients(value_copies_);
}

absl::Status Gradients::PushValues(absl::string_view unit_name, absl::Span<const ConstGradient> values, Worker worker) {
  RETURN_IF_ERROR(attached_.page.status());
  CommandExecutor& executor = attached_.executor;
  RETURN_IF_ERROR(executor.Begin("push", worker));
  if (!worker.has_value() && attached_.memory.gpu() >= 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("push ", unit_name, ": values in memory of a GPU require a stream"));
  }
  ASSIGN_OR_RETURN(const GradientTicket ticket, ChooseSlot(unit_name));
  ASSIGN_OR_RETURN(const std::vector<int> absent, FindAbsent(ticket.unit, values));
  RETURN_IF_ERROR(step_pushes_.Check(ticket.unit));
  const bool lands = Lands(ticket.unit);
  RETURN_IF_ERROR(AwaitSlot(ticket));
  if (lands) RETURN_IF_ERROR(AwaitLandingArea(ticket.unit));
  RETURN_IF_ERROR(CopyValues(ticket, values, lands));
  executor.Write(attached_.page.words().filled(ticket.slot), attached_.page.next_number());
  RETURN_IF_ERROR(executor.Flush());
  return SendPush(ticket, absent, lands);
}

void Gradients::EndStep() {
  RestartStep();
  landings_.assign(landings_.size(), {});
}

void Gradients::GiveBack(const GradientTicket& ticket, Worker worker) {
  if (!attached_.page.IsOwn()) return;
  slots_.Release(ticket.slot);
  if (attached_.memory.gpu() < 0) return;
  CommandExecutor& executor = attached_.executor;
  // Without a mark the stream is lost, and its writes with it.
  const bool marked = executor.BeginReturn("give back", worker).ok() && executor.FollowTrainer().ok() &&
                      attached_.memory.SetMark(MarkOf(ticket.slot), executor.stream()).ok();
  if (marked) given_back_by_[ticket.slot] = executor.stream();
}

absl::Status Gradients::CheckNoneHeld() const {
  const std::vector<int> units = slots_.Holders();
  if (units.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "commit: gradient slots are still held: ", attached_.names.UnitNames(units), "; push them, or give them back"));
}

}  // namespace paramshard::internal
