#include "common/model/gather_copies.h"

#include <algorithm>

#include "kernels/base/align.h"

namespace paramshard {
namespace {

constexpr int64_t kScratchAlignment = 256;

int Index(Plane plane) { return plane == Plane::kRowWise ? 0 : 1; }

// Returns true if a gather may take the slot: a resident unit has its own slot, the other units share the ring.
bool MayTake(const Layout& layout, int unit, Phase phase, int slot) {
  const UnitLayout& in_unit = layout.units()[unit];
  if (in_unit.resident_slot.has_value()) return slot == *in_unit.resident_slot && phase == Phase::kBoth;
  return slot < layout.ring_slots() && in_unit.slot_bytes[phase] <= layout.slot_bytes()[slot];
}

}  // namespace

GatherCopies::GatherCopies(const Layout& layout, int unit, Phase phase, int rank)
    : own_pieces_(layout.Pieces(unit, phase, rank)), assembled_(layout.units()[unit].parameters.size()) {
  for (int parameter = 0; parameter < static_cast<int>(assembled_.size()); ++parameter) {
    const Format format = EncodingOf(layout.spec().units[unit].parameters[parameter].encoding).format;
    for (const Plane plane : {Plane::kRowWise, Plane::kColumnWise}) {
      if (Brings(format, plane, phase)) AppendScales(layout, unit, parameter, plane, phase);
    }
  }
}

void GatherCopies::AppendScales(const Layout& layout, int unit, int parameter, Plane plane, Phase phase) {
  const PlanePlace place = PlaceInSlot(layout, unit, parameter, plane, phase);
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

UnitGatherCopies AllGatherCopies(const Layout& layout, int rank) {
  UnitGatherCopies copies(layout.units().size());
  for (int unit = 0; unit < static_cast<int>(copies.size()); ++unit) {
    for (const Phase phase : kPhases) copies[unit][phase] = GatherCopies(layout, unit, phase, rank);
  }
  return copies;
}

std::vector<int64_t> ScratchBytes(const Layout& layout, const UnitGatherCopies& copies) {
  std::vector<int64_t> bytes(layout.slot_bytes().size());
  for (int slot = 0; slot < static_cast<int>(bytes.size()); ++slot) {
    for (int unit = 0; unit < static_cast<int>(copies.size()); ++unit) {
      for (const Phase phase : kPhases) {
        if (MayTake(layout, unit, phase, slot)) {
          bytes[slot] = std::max(bytes[slot], copies[unit][phase].scratch_bytes());
        }
      }
    }
  }
  return bytes;
}

}  // namespace paramshard
