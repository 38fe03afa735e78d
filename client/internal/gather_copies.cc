#include "client/internal/gather_copies.h"

#include <algorithm>

#include "kernels/base/align.h"

namespace paramshard::internal {
namespace {

constexpr Plane kPlanes[] = {Plane::kRowWise, Plane::kColumnWise};
constexpr Phase kPhases[] = {Phase::kForward, Phase::kBackward, Phase::kBoth};
constexpr int64_t kScratchAlignment = 256;

int Index(Plane plane) { return plane == Plane::kRowWise ? 0 : 1; }

// Whether a gather may take the slot: residents have one of their own, the others share the ring.
bool MayTake(const LayoutView& layout, int unit, Phase phase, int slot, int ring_slots) {
  if (const std::optional<int> own = layout.ResidentSlot(unit); own.has_value())
    return slot == *own && phase == Phase::kBoth;
  return slot < ring_slots && layout.SlotBytes(unit, phase) <= layout.proto().slot_bytes(slot);
}

}  // namespace

GatherCopies::GatherCopies(const LayoutView& layout, int unit, Phase phase)
    : own_pieces_(layout.OwnPieces(unit, phase)), assembled_(layout.proto().units(unit).parameters_size()) {
  for (int parameter = 0; parameter < static_cast<int>(assembled_.size()); ++parameter) {
    for (Plane plane : kPlanes) {
      if (layout.Brings(unit, parameter, plane, phase)) AppendScales(layout, unit, parameter, plane, phase);
    }
  }
}

void GatherCopies::AppendScales(const LayoutView& layout, int unit, int parameter, Plane plane, Phase phase) {
  const PlanePlace place = layout.InSlot(unit, parameter, plane, phase);
  if (place.scales.size() < 2) return;
  ByteRange whole{.offset = scratch_bytes_};
  for (const ByteRange& part : place.scales) {
    scales_.push_back({.source = part.offset, .target = whole.offset + whole.bytes, .bytes = part.bytes});
    whole.bytes += part.bytes;
  }
  scratch_bytes_ = AlignUp(whole.offset + whole.bytes, kScratchAlignment);
  assembled_[parameter][Index(plane)] = whole;
}

std::optional<ByteRange> GatherCopies::AssembledScales(int parameter, Plane plane) const {
  return assembled_[parameter][Index(plane)];
}

std::vector<GatherCopies> AllGatherCopies(const LayoutView& layout) {
  std::vector<GatherCopies> copies;
  for (int unit = 0; unit < layout.proto().units_size(); ++unit) {
    for (Phase phase : kPhases) copies.emplace_back(layout, unit, phase);
  }
  return copies;
}

std::vector<int64_t> ScratchBytes(const LayoutView& layout, const std::vector<GatherCopies>& copies) {
  std::vector<int64_t> bytes(layout.proto().slot_bytes_size());
  const int ring_slots = layout.RingSlots();  // counts units
  for (int slot = 0; slot < static_cast<int>(bytes.size()); ++slot) {
    for (int unit = 0; unit < layout.proto().units_size(); ++unit) {
      for (Phase phase : kPhases) {
        if (!MayTake(layout, unit, phase, slot, ring_slots)) continue;
        bytes[slot] = std::max(bytes[slot], copies[CopiesIndex(unit, phase)].scratch_bytes());
      }
    }
  }
  return bytes;
}

}  // namespace paramshard::internal
