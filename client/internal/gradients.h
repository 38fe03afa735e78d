// A session's gradient slots, from the trainer's hands to the daemon's.
#ifndef PARAMSHARD_CLIENT_INTERNAL_GRADIENTS_H_
#define PARAMSHARD_CLIENT_INTERNAL_GRADIENTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/internal/attachment.h"
#include "client/internal/commits.h"
#include "client/internal/slots.h"
#include "common/model/step_pushes.h"

namespace paramshard::internal {

// A gradient slot that was handed out, until it is pushed or given back.
struct GradientTicket {
  int unit = 0;
  int slot = 0;
};

// See Model and UnitGradients for the errors. Used by one thread at a time.
//
// A slot that the host hands out is ready for every stream. The host takes a slot back after the trainer's work so far
// on the default stream. A slot that a stream hands out is ready for that stream.
class Gradients {
 public:
  // `commits` outlives it.
  Gradients(const Attachment& attached, const Commits* commits);

  absl::StatusOr<GradientTicket> Take(absl::string_view unit, Worker worker = {}, bool zeroed = true);
  GradientView View(const GradientTicket& ticket, int parameter) const;
  // OK if the ticket's unit may be pushed now.
  absl::Status CheckPush(const GradientTicket& ticket) const;
  // Hands over what `worker` has written. `absent_parameters` ascend.
  absl::Status Push(const GradientTicket& ticket, absl::Span<const int> absent_parameters, Worker worker = {});
  // Takes a slot, copies the values of all parameters of the unit, and pushes it. See Model::PushGradients.
  absl::Status PushValues(absl::string_view unit, absl::Span<const ConstGradient> values, Worker worker = {});
  void GiveBack(const GradientTicket& ticket, Worker worker = {});

  // FAILED_PRECONDITION naming the units whose slots are neither pushed nor given back.
  absl::Status CheckNoneHeld() const;
  // Returns true if a unit was pushed since the last commit or discard.
  bool HasPushed() const { return has_pushed_; }
  // A commit was sent: the next push of a unit is its first again.
  void EndStep();
  // The same after a discard.
  void RestartStep() {
    step_pushes_.Clear();
    has_pushed_ = false;
  }

 private:
  absl::StatusOr<GradientTicket> ChooseSlot(absl::string_view unit) const;
  // Orders the worker after the daemon's reads of the slot, and after the stream that may still write it.
  absl::Status AwaitSlot(const GradientTicket& ticket);
  absl::Status AwaitGivenBack(const GradientTicket& ticket);
  // Returns true if the next push of the unit keeps this rank's own rows where the daemon looks for them at the commit.
  bool Lands(int unit) const;
  // Returns the unit's parameters without values, ascending.
  absl::StatusOr<std::vector<int>> FindAbsent(int unit, absl::Span<const ConstGradient> values) const;
  // Copies values into the slot and, if they are to be `landed`, own rows to the landing area. Where all rows are own
  // ones, nobody reads the slot then.
  absl::Status CopyValues(const GradientTicket& ticket, absl::Span<const ConstGradient> values, bool landed);
  // Sends the command of a slot that is filled.
  absl::Status SendPush(const GradientTicket& ticket, absl::Span<const int> absent_parameters, bool landed);
  // Orders the worker after all work that still uses the unit's landing area.
  absl::Status AwaitLandingArea(int unit);
  // Hands the slot over, by the word `filled`, and keeps this rank's own rows where the daemon looks for them at the
  // commit, if they are to be `landed`.
  absl::Status Fill(const GradientTicket& ticket, absl::Span<const int> absent_parameters, bool landed, Worker worker);
  uint8_t* SlotMemory(int slot) const;
  int MarkOf(int slot) const { return static_cast<int>(attached_.layout.slot_bytes().size()) + slot; }

  const Attachment attached_;
  const Commits& commits_;
  GradientSlots slots_;
  std::vector<Worker> given_back_by_;  // by slot: the stream that may still write it, though it was not pushed
  StepPushes step_pushes_;
  bool has_pushed_ = false;
  // By unit: the push since the last commit that kept its rows in the landing area, by its number; 0: there was none.
  struct Landing {
    int slot = 0;
    int64_t number = 0;
  };
  std::vector<Landing> landings_;
  // Used within one call.
  std::vector<ByteCopy> copies_;
  std::vector<GradientCopy> value_copies_;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_GRADIENTS_H_
