// A shard group that lies in one daemon: every rank's memory is at hand.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_LOCAL_GROUP_H_
#define PARAMSHARD_SERVER_COLLECTIVE_LOCAL_GROUP_H_

#include <cstdint>
#include <vector>

#include "proto/model/layout.h"
#include "proto/model/model_spec.h"
#include "server/collective/collectives.h"

namespace paramshard::server {

// A view; the model, the layout and the memory outlive it. Ranks are of the group.
struct LocalGroup {
  const ModelSpec* model = nullptr;
  const Layout* layout = nullptr;
  std::vector<RankMemory> memory;  // of every rank

  int ranks() const { return static_cast<int>(memory.size()); }

  // The gradients of `slice` that `rank` has put into the slot.
  const void* Gradients(const ReduceCall& call, const GradientSlice& slice, int rank) const;

  // The same, of `rank` itself, where it has landed them.
  const void* Landed(int unit, const GradientSlice& slice, int rank) const;

  GradientType gradient_type(int unit, int parameter) const {
    return model->units[unit].parameters[parameter].gradient_type;
  }

  // Copies the pieces of `source` into the slot of `target`.
  void CopyPieces(const GatherCall& call, int source, int target) const;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_COLLECTIVE_LOCAL_GROUP_H_
