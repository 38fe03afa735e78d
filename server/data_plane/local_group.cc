#include "server/data_plane/local_group.h"

#include <cstring>

namespace paramshard::server {

const void* LocalGroup::Gradients(int slot, const GradientSlice& slice, int rank) const {
  return memory[rank].slots + layout->gradient_slot_offsets()[slot] + slice.slot_offset;
}

const void* LocalGroup::Landed(const GradientSlice& slice, int rank) const {
  return memory[rank].slots + layout->slots_bytes() + slice.landing_offset;
}

int64_t LocalGroup::CopyPieces(const GatherCall& call, int source, int target) const {
  const uint8_t* const arena = memory[source].arena;
  uint8_t* const slot = memory[target].slots + layout->slot_offsets()[call.slot];
  int64_t size_bytes = 0;
  for (const PieceCopy& piece : layout->Pieces(call.unit, call.phase, source)) {
    std::memcpy(slot + piece.target, arena + piece.source, piece.bytes);
    size_bytes += piece.bytes;
  }
  return size_bytes;
}

}  // namespace paramshard::server
