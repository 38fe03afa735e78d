// Session's calls that enqueue on a trainer's streams.
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/internal/session.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {

absl::Status Session::CheckHasStreams(absl::string_view call) const {
  RETURN_IF_ERROR(page_.status());
  if (gpu() >= 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      call, " on a stream: a session with a GPU expected, the daemon serves rank ", rank_, " from host memory"));
}

void Session::AwaitWordOn(wire::Word& word, int64_t number) {
  if (page_.Reached(word, number)) return;
  word_operations_.push_back(
      {.kind = WordOperation::Kind::kAwait, .word = &word, .value = static_cast<uint32_t>(number)});
}

void Session::AwaitReadersOn(int slot, GpuStream stream) {
  const std::optional<StreamRelease>& last = stream_releases_[slot];
  if (last.has_value() && last->stream != stream) AwaitWordOn(page_.words().released(slot), last->number);
}

absl::Status Session::EnqueueWords(GpuStream stream) {
  if (word_operations_.empty()) return absl::OkStatus();
  return memory_.tensors->EnqueueWords(word_operations_, stream);
}

absl::Status Session::AwaitGatherOn(const GatherTicket& ticket, GpuStream stream) {
  RETURN_IF_ERROR(CheckHasStreams("wait"));
  const bool lands = started_.client_lands_own_pieces();
  word_operations_.clear();
  if (lands && ticket.commit_number > 0) AwaitWordOn(page_.words().committed(), ticket.commit_number);
  if (!ReadsArena()) AwaitReadersOn(ticket.slot, stream);
  // As in AwaitGather.
  const bool lands_first = lands && !ReadsArena() && LandsFirst(ticket);
  if (lands_first) {
    RETURN_IF_ERROR(EnqueueWords(stream));
    RETURN_IF_ERROR(LandOwnPieces(ticket, stream));
    word_operations_.clear();
  }
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    if (lands && rank == started_.group_rank()) continue;
    AwaitWordOn(page_.words().ready(ticket.slot, rank), ticket.number);
  }
  RETURN_IF_ERROR(EnqueueWords(stream));
  if (!ReadsArena()) {
    if (lands && !lands_first) RETURN_IF_ERROR(LandOwnPieces(ticket, stream));
    RETURN_IF_ERROR(AssembleScales(ticket, stream));
  }
  RETURN_IF_ERROR(memory_.tensors->SetMark(ticket.slot, stream));
  // Arrived, as the stream sees it: the release comes later on a stream too.
  MarkArrived(ticket);
  return absl::OkStatus();
}

absl::Status Session::FollowGatherOn(const GatherTicket& ticket, GpuStream stream) {
  RETURN_IF_ERROR(page_.status());
  return memory_.tensors->AwaitMark(ticket.slot, stream);
}

absl::Status Session::ReleaseOn(const GatherTicket& ticket, GpuStream stream) {
  RETURN_IF_ERROR(page_.CheckProcess());
  MarkReleased(ticket);
  wire::Word& released = page_.words().released(ticket.slot);
  const auto number = static_cast<uint32_t>(ticket.number);
  word_operations_.clear();
  AwaitReadersOn(ticket.slot, stream);
  word_operations_.push_back({.kind = WordOperation::Kind::kWrite, .word = &released, .value = number});
  const absl::Status status = EnqueueWords(stream);
  if (status.ok()) {
    stream_releases_[ticket.slot] = {stream, ticket.number};
    return status;
  }
  // The stream is lost, and its readers with it.
  released.value.store(number, std::memory_order_release);
  page_.words().Ring();
  return status;
}

absl::StatusOr<GradientTicket> Session::TakeGradientsOn(absl::string_view unit, GpuStream stream, bool zeroed) {
  RETURN_IF_ERROR(CheckHasStreams("gradients"));
  ASSIGN_OR_RETURN(const GradientTicket ticket, ChooseGradientSlot(unit));
  word_operations_.clear();
  if (const int64_t push = gradient_slots_.last_push(ticket.slot); push > 0) {
    AwaitWordOn(page_.words().drained(ticket.slot), push);
  }
  RETURN_IF_ERROR(EnqueueWords(stream));
  RETURN_IF_ERROR(zeroed ? ZeroGradients(ticket, stream) : AwaitGivenBack(ticket, stream));
  gradient_slots_.Hold(ticket.slot, ticket.unit);
  return ticket;
}

}  // namespace paramshard::internal
