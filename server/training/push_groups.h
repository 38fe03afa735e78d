// Pushes of an epoch that are not finished, matched between ranks.
#ifndef PARAMSHARD_SERVER_TRAINING_PUSH_GROUPS_H_
#define PARAMSHARD_SERVER_TRAINING_PUSH_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "common/model/model_spec.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/base/clock.h"
#include "server/training/sent_command.h"

namespace paramshard::server {

// One rank's push.
struct PushPart {
  int64_t number = 0;           // of the command; 0: the rank has not sent it
  int slot = 0;                 // of gradients
  std::vector<int32_t> absent;  // parameters without a gradient
  size_t bytes = 0;             // of the command, as it was sent
  SteadyTime arrived_at;
  std::optional<SteadyTime> filled_at;  // when it was seen
  bool lands = false;                   // its gradients are copied out of the slot before the push is complete
  SteadyTime lands_after;               // there was no memory for it before
  std::vector<char> read;               // by owner: has landed it, or summed it
  int reads = 0;
};

// The k-th pushes of one unit in a step, of all ranks. It is complete when every rank has filled its slot, or is absent.
struct PushGroup {
  int64_t id = 0;  // from 1, unique in the epoch
  int unit = 0;
  int ordinal = 0;      // k, from 0
  int64_t step = 0;     // see StepEnds
  v1::Command command;  // of the rank that sent it first
  int first_rank = 0;
  int arrived = 0;
  SteadyTime first_arrival, last_arrival;
  std::vector<PushPart> parts;  // by rank
  std::vector<char> summed;     // by owner
  int sums = 0;
  // Filled in when it is complete. Slots of absent ranks are 0; no lists if no rank is without a gradient.
  std::vector<int> slots;
  std::vector<std::vector<int32_t>> absent;
};

// A gradient slot whose gradients are read.
struct DrainedSlot {
  int rank = 0;
  int slot = 0;
  int64_t number = 0;  // of the push
};

// In the order in which the first rank has sent them; pushes of one unit are in the order of their ordinals. Owners are
// the ranks, each of which sums its rows. Not thread-safe.
class PushGroups {
 public:
  PushGroups(const ModelSpec& spec, int ranks);

  // Adds a rank's push to its group, which `sent` may begin.
  PushGroup& Add(int rank, int64_t step, SentCommand sent, SteadyTime now);
  // Returns the group that a rank's next push of the unit joins; null if it would begin one.
  const PushGroup* NextOf(int rank, int64_t step, int unit) const;
  // Called when a rank has ended its step: its next push of a unit is the first again.
  void EndStep(int rank) { counts_[rank].assign(counts_[rank].size(), 0); }

  // Called before the first owner sums a complete group.
  void Complete(PushGroup& group) const;
  // Records that an owner has landed the gradients of `source`, or summed the group; appends the slots that are drained
  // now. A group that all owners have summed goes.
  void FinishLand(PushGroup& group, int owner, int source, std::vector<DrainedSlot>& drained);
  void FinishSum(PushGroup& group, int owner, std::vector<DrainedSlot>& drained);

  std::list<PushGroup>& all() { return groups_; }
  const std::list<PushGroup>& all() const { return groups_; }
  // Returns true if ranks have been absent from a push of the unit in this epoch, or much later than others.
  bool differs(int unit) const { return differs_[unit]; }
  void set_differs(int unit) { differs_[unit] = true; }
  // Returns the number of the rank's pushes whose slots are not drained, and their bytes.
  int unfinished(int rank) const { return unfinished_[rank]; }
  size_t bytes(int rank) const { return bytes_[rank]; }
  // Returns true if an earlier push of the rank is not read out of the slot of `part`.
  bool IsSlotBusy(int rank, const PushPart& part) const;
  // Returns true if the rank has sent a push with a number up to `number` whose slot is not drained.
  bool IsUndrainedThrough(int rank, int64_t number) const;

 private:
  void Read(PushGroup& group, int owner, int source, std::vector<DrainedSlot>& drained);

  const ModelSpec& spec_;
  const int ranks_;
  std::list<PushGroup> groups_;
  int64_t last_id_ = 0;
  std::vector<std::vector<int>> counts_;  // by rank and unit: pushes in the rank's step
  std::vector<bool> differs_;             // by unit
  std::vector<int> unfinished_;           // by rank
  std::vector<size_t> bytes_;             // by rank
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_PUSH_GROUPS_H_
