#include "client/internal/session.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/internal/epoch_layout.h"
#include "client/internal/owner_process.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
namespace {

// Other ranks may take so long to send the commands that this one has sent; leaving earlier ends the epoch for them.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(30);
constexpr absl::Duration kDetachTimeout = absl::Seconds(5);

wire::WordsCounts Counts(const Layout& layout) {
  return {.slots = static_cast<int>(layout.slot_bytes().size()),
          .ranks = layout.ranks(),
          .gradient_slots = static_cast<int>(layout.gradient_slot_bytes().size())};
}

absl::Status CheckSize(absl::string_view memory, int64_t expected, int64_t got) {
  if (expected == got) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("session ", memory, ": want ", expected, " bytes by the layout, got ", got));
}

}  // namespace

absl::StatusOr<Session::Memory> Session::MapMemory(const Parts& parts, const Layout& layout, int64_t scratch_bytes) {
  const wire::WordsCounts counts = Counts(layout);
  const wire::CompanionMemory& sizes = parts.memory.sizes;
  const int rank = parts.started.group_rank();
  const auto words_bytes = static_cast<int64_t>(wire::Words::SizeBytes(counts));
  RETURN_IF_ERROR(CheckSize("planes", layout.arena_bytes(rank), sizes.planes_bytes));
  // A landing area may exist without being used.
  const bool has_landing = parts.started.client_lands_own_gradients() || sizes.slots_bytes > layout.slots_bytes();
  const int64_t landing_bytes = has_landing ? layout.landing_bytes(rank) : 0;
  RETURN_IF_ERROR(CheckSize("slots", layout.slots_bytes() + landing_bytes, sizes.slots_bytes));
  RETURN_IF_ERROR(CheckSize("words", words_bytes, sizes.words_bytes));
  Memory mapped;
  ASSIGN_OR_RETURN(MappedMemory words,
                   MappedMemory::Map("words", parts.memory.words, words_bytes, MappedMemory::Access::kReadWrite));
  mapped.words = std::make_shared<const MappedMemory>(std::move(words));
  ASSIGN_OR_RETURN(mapped.tensors,
                   parts.map_tensors(parts.started.gpu_uuid(), {.memory = &parts.memory,
                                                                .words = mapped.words,
                                                                .scratch_bytes = scratch_bytes,
                                                                .marks = counts.slots + counts.gradient_slots}));
  return mapped;
}

absl::StatusOr<std::shared_ptr<Session>> Session::Create(Parts parts) {
  ASSIGN_OR_RETURN(Layout layout, ComputeLayout(parts.started));
  parts.started.clear_spec();
  UnitGatherCopies copies = AllGatherCopies(layout, parts.started.group_rank());
  const std::vector<int64_t> scratch = ScratchBytes(layout, copies);
  ASSIGN_OR_RETURN(Memory memory,
                   MapMemory(parts, layout, std::accumulate(scratch.begin(), scratch.end(), int64_t{0})));
  std::shared_ptr<Session> session = ShareWithinProcess(
      std::unique_ptr<Session>(new Session(std::move(parts), std::move(layout), std::move(copies), std::move(memory))));
  ASSIGN_OR_RETURN(session->watch_, DaemonWatch::Start(&session->page_, session->companion_.daemon_pidfd(),
                                                       session->companion_.socket()));
  return session;
}

Session::Session(Parts parts, Layout layout, UnitGatherCopies copies, Memory memory)
    : rank_(parts.rank),
      started_(std::move(parts.started)),
      layout_(std::move(layout)),
      names_(layout_.spec()),
      companion_(std::move(parts.companion)),
      memory_(std::move(memory)),
      page_(wire::Words(memory_.words->data(), Counts(layout_)), companion_.daemon_pidfd(), companion_.daemon_pid(),
            std::move(parts.interruption)),
      executor_(&page_, memory_.tensors.get(), rank_),
      commits_(Attached()),
      gathers_(Attached(), std::move(copies), &commits_, parts.prefetch),
      gradients_(Attached(), &commits_),
      stream_(std::move(parts.stream)) {}

Session::~Session() {
  Detach().IgnoreError();
  answered_->store(commits_.last_answered());
}

absl::StatusOr<int64_t> Session::Commit(const CommitOptions& options) {
  RETURN_IF_ERROR(page_.status());
  gathers_.DropAhead();
  RETURN_IF_ERROR(gathers_.CheckNoneHeld());
  RETURN_IF_ERROR(gradients_.CheckNoneHeld());
  const int64_t last = commits_.last();
  ASSIGN_OR_RETURN(const int64_t number, commits_.Send(options));
  // A repeated number commits nothing.
  if (number != last) gradients_.EndStep();
  gathers_.EndStep();
  return number;
}

absl::Status Session::Discard() {
  RETURN_IF_ERROR(page_.status());
  // A trainer that has pushed nothing goes on with its step.
  const bool begins_anew = gradients_.HasPushed();
  if (begins_anew) gathers_.DropAhead();
  v1::Command command;
  command.mutable_discard();
  RETURN_IF_ERROR(page_.Send(std::move(command)).status());
  gradients_.RestartStep();
  if (begins_anew) gathers_.RestartStep();
  return absl::OkStatus();
}

void Session::UnmapEnded() {
  if (!page_.CheckProcess().ok()) return;
  page_.EndIfDaemonDied();
  answered_->store(commits_.last_answered());
  if (page_.status().ok() || gathers_.HasHandles() || !gradients_.CheckNoneHeld().ok()) return;
  if (mapped_.use_count() > 1) return;
  memory_.tensors->Unmap();
}

std::shared_ptr<const void> Session::KeepMapped(std::shared_ptr<Session> session) {
  struct Kept {
    std::shared_ptr<Session> session;
    std::shared_ptr<const char> mapped;
  };
  std::shared_ptr<const char> mapped = session->mapped_;
  return std::make_shared<const Kept>(Kept{.session = std::move(session), .mapped = std::move(mapped)});
}

absl::Status Session::Detach() {
  RETURN_IF_ERROR(page_.CheckProcess());
  watch_.reset();
  if (stream_ == nullptr) return absl::OkStatus();
  absl::Status closed;
  if (page_.status().ok()) closed = stream_->Detach(page_.next_number() - 1, Deadline::After(kLeaveTimeout));
  closed.Update(stream_->Close(Deadline::After(kDetachTimeout)));
  stream_.reset();
  page_.End(absl::CancelledError("the trainer has detached"));
  return closed;
}

}  // namespace paramshard::internal
