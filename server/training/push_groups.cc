#include "server/training/push_groups.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace paramshard::server {

namespace {

// Returns a group of `groups`, which may be changed unless they are constant; null if there is none.
template <typename Groups>
auto* FindGroup(Groups& groups, int64_t step, int unit, int ordinal) {
  const auto found = std::find_if(groups.begin(), groups.end(), [&](const PushGroup& group) {
    return group.step == step && group.unit == unit && group.ordinal == ordinal;
  });
  return found == groups.end() ? nullptr : &*found;
}

}  // namespace

PushGroups::PushGroups(const ModelSpec& spec, int ranks)
    : spec_(spec),
      ranks_(ranks),
      counts_(ranks, std::vector<int>(spec.units.size(), 0)),
      differs_(spec.units.size(), false),
      unfinished_(ranks, 0),
      bytes_(ranks, 0) {}

const PushGroup* PushGroups::NextOf(int rank, int64_t step, int unit) const {
  return FindGroup(groups_, step, unit, counts_[rank][unit]);
}

PushGroup& PushGroups::Add(int rank, int64_t step, SentCommand sent, SteadyTime now) {
  const int unit = sent.command.push().unit();
  PushGroup* group = FindGroup(groups_, step, unit, counts_[rank][unit]);
  if (group == nullptr) {
    group = &groups_.emplace_back();
    group->id = ++last_id_;
    group->unit = unit;
    group->ordinal = counts_[rank][unit];
    group->step = step;
    group->command = sent.command;
    group->first_rank = rank;
    group->first_arrival = now;
    group->parts.resize(ranks_);
    group->summed.resize(ranks_);
  }
  ++counts_[rank][unit];
  ++group->arrived;
  group->last_arrival = now;
  PushPart& part = group->parts[rank];
  part.number = sent.command.number();
  part.slot = sent.command.push().slot();
  part.bytes = sent.canonical.size() + sent.absent.size() * sizeof(int32_t);
  part.absent = std::move(sent.absent);
  part.arrived_at = now;
  part.read.resize(ranks_);
  ++unfinished_[rank];
  bytes_[rank] += part.bytes;
  return *group;
}

void PushGroups::Complete(PushGroup& group) const {
  if (!group.slots.empty()) return;
  std::vector<int32_t> all(spec_.units[group.unit].parameters.size());
  std::iota(all.begin(), all.end(), 0);
  for (const PushPart& part : group.parts) {
    group.slots.push_back(part.slot);
    group.absent.push_back(part.number == 0 ? all : part.absent);
  }
  const bool has_absent = std::any_of(group.absent.begin(), group.absent.end(),
                                      [](const std::vector<int32_t>& each) { return !each.empty(); });
  if (!has_absent) group.absent.clear();
}

void PushGroups::Read(PushGroup& group, int owner, int source, std::vector<DrainedSlot>& drained) {
  PushPart& part = group.parts[source];
  if (part.number == 0 || part.read[owner]) return;
  part.read[owner] = true;
  if (++part.reads < ranks_) return;
  --unfinished_[source];
  bytes_[source] -= part.bytes;
  drained.push_back({.rank = source, .slot = part.slot, .number = part.number});
}

void PushGroups::FinishLand(PushGroup& group, int owner, int source, std::vector<DrainedSlot>& drained) {
  Read(group, owner, source, drained);
}

void PushGroups::FinishSum(PushGroup& group, int owner, std::vector<DrainedSlot>& drained) {
  for (int source = 0; source < ranks_; ++source) Read(group, owner, source, drained);
  group.summed[owner] = true;
  if (++group.sums < ranks_) return;
  for (const PushPart& part : group.parts) {
    if (part.number == 0) differs_[group.unit] = true;
  }
  groups_.remove_if([&](const PushGroup& each) { return &each == &group; });
}

bool PushGroups::IsSlotBusy(int rank, const PushPart& part) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const PushGroup& group) {
    const PushPart& other = group.parts[rank];
    return other.number > 0 && other.number < part.number && other.slot == part.slot && other.reads < ranks_;
  });
}

bool PushGroups::IsUndrainedThrough(int rank, int64_t number) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const PushGroup& group) {
    const PushPart& part = group.parts[rank];
    return part.number > 0 && part.number <= number && part.reads < ranks_;
  });
}

}  // namespace paramshard::server
