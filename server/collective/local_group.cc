#include "server/collective/local_group.h"

#include <cstring>

namespace paramshard::server {

const void* LocalGroup::Gradients(const ReduceCall& call, const GradientSlice& slice, int rank) const {
  return memory[rank].slots + layout->gradient_slot_offsets()[call.slot] + slice.slot_offset;
}

void LocalGroup::CopyPieces(const GatherCall& call, int source, int target) const {
  const uint8_t* const arena = memory[source].arena;
  uint8_t* const slot = memory[target].slots + layout->slot_offsets()[call.slot];
  for (const PieceCopy& piece : layout->Pieces(call.unit, call.use, source)) {
    std::memcpy(slot + piece.target, arena + piece.source, piece.bytes);
  }
}

void LocalGroup::SumSlice(const ReduceCall& call, const GradientSlice& slice, bool overwrite,
                          float* accumulator) const {
  std::vector<const void*> sources;
  sources.reserve(memory.size());
  for (int rank = 0; rank < ranks(); ++rank) sources.push_back(Gradients(call, slice, rank));
  SumGradients(sources, gradient_type(call.unit, slice.parameter), slice.elements, overwrite, accumulator);
}

}  // namespace paramshard::server
